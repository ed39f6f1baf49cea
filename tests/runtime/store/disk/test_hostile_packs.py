"""Packs whose checksums are right and whose contents are not: `verify` names what and where."""

import struct
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.ops.select.means.layout import TILES, means_layout
from kvarn.ops.select.tables.planes import RUN, Tables
from kvarn.runtime.model import Model
from kvarn.runtime.store import PackError, StoreError
from kvarn.runtime.store.disk.archive import export_pack, import_pack
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.finite import infinite_tokens

from ...reading import ids_of
from .packs import HEAD_DIM, fill, make, opened, random_tokens, save
from .sealing import Parts

TOKENS = random_tokens(2 * SEGMENT + 10)
NAN, INFINITY = b"\x00\x7e", b"\x00\xfc"  # f16
SEGMENT_FAULT = "K of layer 1, KV head 0, token 1041 is not finite"


def written(parts: Parts, path: Path) -> Path:
    parts.write(path)
    return path


@pytest.fixture(params=["f16", "q8_0", "q4_0"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def parts(tmp_path: Path, kind: str) -> Parts:
    """Two full segments and ten tokens of a small pack."""
    make(tmp_path / "sound", kind, kind)
    store = opened(tmp_path / "sound")
    fill(store, TOKENS, 0)
    save(store, TOKENS)
    store.close()
    return Parts.of(tmp_path / "sound")


def test_what_is_put_together_again_is_sound(parts: Parts, tmp_path: Path) -> None:
    assert verify(written(parts, tmp_path / "again")) == []


@pytest.mark.parametrize("n", [0, SEGMENT])
def test_packs_without_an_open_segment_are_sound(tmp_path: Path, n: int) -> None:
    make(tmp_path / "pack")
    store = opened(tmp_path / "pack")
    fill(store, TOKENS[:n], 0)
    save(store, TOKENS[:n])
    store.close()
    assert verify(tmp_path / "pack") == []


@pytest.mark.parametrize("bits", [NAN, INFINITY])
@pytest.mark.parametrize("side", ["K", "V"])
def test_keys_and_values_that_are_not_finite_are_named(
    parts: Parts, tmp_path: Path, kind: str, side: str, bits: bytes
) -> None:
    """In f16 rows an element, else a scale: of token 17 of the second segment, in layer 1."""
    layout, tile, row = TileLayout(HEAD_DIM, kind, kind), 1, 1
    size = layout.k_row_bytes if kind == "f16" else layout.scale_row_bytes
    first = layout.scale_offset if kind != "f16" else layout.v_offset if side == "V" else 0
    first += layout.v_scale if kind != "f16" and side == "V" else 0
    at = tile * layout.tile_bytes + first + row * size
    parts.slots["layer-001.kv", 1][at : at + 2] = bits
    path = written(parts, tmp_path / "hostile")
    fault = SEGMENT_FAULT.replace("K", side, 1)
    assert verify(path) == [f"pack {path}: {fault} (one of 1 in its segment)"]


def test_the_open_segment_is_checked_as_others_are(parts: Parts, tmp_path: Path, kind: str) -> None:
    layout = TileLayout(HEAD_DIM, kind, kind)
    row = layout.k_row_bytes + layout.v_row_bytes + layout.scale_row_bytes
    at = 8 + row + (0 if kind == "f16" else layout.k_row_bytes + layout.v_row_bytes)
    parts.tail[3][at : at + 2] = NAN
    (line,) = verify(written(parts, tmp_path / "hostile"))
    assert "K of layer 1, KV head 0, token 2051 is not finite" in line


def test_what_is_not_finite_beside_keys_and_values(parts: Parts, tmp_path: Path) -> None:
    parts.hidden[4:8] = struct.pack("<f", np.nan)
    (line,) = verify(written(parts, tmp_path / "hostile"))
    assert "the hidden state of its last token is not finite" in line


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_sound_numbers_of_any_size_are_finite(kind: str) -> None:
    layout = TileLayout(HEAD_DIM, kind, kind)
    segment = np.zeros(layout.head_bytes, np.uint8)
    numbers = segment.view("<u2")
    numbers[:] = 0x7BFF  # 65,504, the greatest f16; as whole numbers, anything
    assert not any(found.any() for found in infinite_tokens(segment, layout))


COLUMNS: dict[str, tuple[int, int, bytes, str]] = {
    "means-1": (4, TILES * means_layout(16).tile_bytes, b"\x20", "not all of its blocks have 32"),
    "means-2": (4, means_layout(16).scale_offset, INFINITY, "a scale is not finite"),
    "sketch-1-factors-c1": (2, 100, NAN, "a factor is not finite"),
    "centre": (1, 8, b"\0\0\xc0\xff", "the mean key or a scale is not finite"),
    "frame": (1, 8, b"\0\0\xc0\xff", "the mean key or a scale is not finite"),
}
"""Bytes per token, where, what is there instead, what is said."""


@pytest.mark.parametrize("kind", ["f16"])
@pytest.mark.parametrize("name", [*COLUMNS, "simhash-32-1", "means", "tables-99x1-1"])
def test_columns_are_checked_by_what_they_hold(tmp_path: Path, kind: str, name: str) -> None:
    item, at, bits, fault = COLUMNS.get(name, (8, 0, b"\xff", ""))
    path = tmp_path / "sound"
    make(path)
    store = opened(path)
    fill(store, TOKENS, 0)
    store.column(name, item).filled[:] = len(TOKENS)
    save(store, TOKENS)
    store.close()
    assert [line for line in verify(path) if name != "means"] == []  # zeros: not indexed
    parts = Parts.of(path)
    head = SEGMENT * item  # of layer 1, which has one KV head
    parts.slots[f"index-{name}", 1][head + at : head + at + len(bits)] = bits
    path = written(parts, tmp_path / "hostile")
    lines = verify(path)
    if fault:
        (line,) = lines
        assert f"index {name}, segment 1, layer 1, KV head 0: {fault}" in line
    elif name == "means":
        assert all("it has 8 bytes per token, expected 4" in line for line in lines)
        assert len(lines) == 2
    else:
        assert lines == []


def test_tables_are_checked_run_by_run() -> None:
    """Groups that end beyond their table, in one of 16 segments; later ones are no run yet."""
    from kvarn.runtime.store.disk.checking.columns import ColumnSegment, column_faults

    tables = Tables(8, 20)
    heads = np.zeros((2, SEGMENT * tables.item_bytes), np.uint8)
    at = tables.table_bytes + 2 * RUN
    heads[1, at : at + 2 * 257].view("<u2")[-1] = RUN + 1
    name = "tables-8x20-1-c16"
    (found,) = column_faults(ColumnSegment(name, heads, 16, 0, 16))
    assert found == (1, "the groups of table 1 are not within it")
    assert not list(column_faults(ColumnSegment(name, heads, 16, 16, 17)))


@pytest.mark.parametrize("kind", ["f16"])
def test_an_import_refuses_what_verify_finds(parts: Parts, tmp_path: Path, kind: str) -> None:
    parts.slots["layer-001.kv", 1][:2] = NAN
    export_pack(written(parts, tmp_path / "hostile"), tmp_path / "archive")
    with pytest.raises(PackError, match=r"it is damaged: .*K of layer 1, KV head 0, token 1024"):
        import_pack(tmp_path / "archive", tmp_path / "packs" / "pack")
    assert not (tmp_path / "packs").exists()


@pytest.mark.parametrize("kind", ["f16"])
def test_more_columns_than_any_pack_has_are_refused(
    parts: Parts, tmp_path: Path, kind: str
) -> None:
    from kvarn.runtime.store.disk.format.log import MOST_COLUMNS

    from .sealing import Record

    for i in range(MOST_COLUMNS + 1):
        body = bytearray(struct.pack("<I", 1) + b"c%d" % i)
        parts.records.append(Record(2, 0, 0, body, [f"index-c{i}"]))
    with pytest.raises(PackError, match="which cannot be"):
        opened(written(parts, tmp_path / "hostile"), writable=False)


@pytest.mark.parametrize(("place", "said"), [("v", "V of layer 0"), ("hidden", "hidden state")])
def test_an_answer_that_cannot_be_names_the_pack(
    tiny: Model, tmp_path: Path, place: str, said: str
) -> None:
    with tiny.context(64, store=kvarn.Disk(tmp_path / "sound")) as context:
        context.prefill(ids_of(tiny, 20))
    parts = Parts.of(tmp_path / "sound")
    if place == "v":
        at = 8 + TileLayout(16).k_row_bytes
        parts.tail[17][at : at + 2] = NAN
    else:
        parts.hidden[:4] = struct.pack("<f", np.inf)
    path = written(parts, tmp_path / "hostile")
    prompt = [1] if place == "v" else []
    disk = kvarn.Disk(path, read_only=True)
    with tiny.context(64, store=disk) as context, pytest.raises(StoreError) as caught:
        list(context.generate_ids(prompt, 1))
    assert said in str(caught.value) and str(path) in str(caught.value)
    assert place != "v" or "token 17 is not finite" in str(caught.value)
