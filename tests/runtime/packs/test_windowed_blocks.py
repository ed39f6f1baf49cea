"""Blocks of models with windows, which stop at the borders of blocks, read by several processes."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

import kvarn
from kvarn.ops.attention.layout import SEGMENT
from kvarn.runtime.model import Model
from kvarn.runtime.packs.blocks import build_pack_in_blocks
from kvarn.runtime.packs.pack import build_pack, pack_info
from kvarn.runtime.prefill import BlocksPrefill
from kvarn.runtime.store import Disk
from kvarn.runtime.store import windowed as store_windows
from kvarn.runtime.store.disk.errors import PackDamaged
from kvarn.runtime.store.disk.format.parts_text import parts_folder
from kvarn.runtime.store.disk.parts import PartFolder

from ..reading import ids_of
from .block_packs import BLOCKS, CTX, N, saved, stopped_in


@pytest.fixture(scope="module", params=[128, 1500])
def windowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The default model, most of whose layers have a window: its own, or one of two segments."""
    path, model = tmp_path_factory.mktemp("windowed") / "model.gguf", kvarn.load()
    data, key = bytearray(model.path.read_bytes()), b".attention.sliding_window"
    value = data.index(key) + len(key) + 4
    assert data[value - 4 : value + 4] == struct.pack("<II", 4, 128)
    data[value : value + 4] = struct.pack("<I", request.param)
    path.write_bytes(data)
    return kvarn.load(path)


STOP = replace(BLOCKS, windows="stop")


@pytest.mark.parametrize(
    ("n_tokens", "prefill", "n_before"),
    [
        (N, STOP, 0),
        (2 * 2048, STOP, 0),  # no rest
        (N, replace(STOP, rest="block"), 0),
        (N, STOP, 1536),
        (N, STOP, 3072),  # within a block, whose windows reach what is there
        (N, STOP, 4608),
    ],
)
def test_a_model_with_windows_is_read_in_parts(
    windowed: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    n_tokens: int,
    prefill: BlocksPrefill,
    n_before: int,
) -> None:
    """Also what one process began; what is read later goes on with the same bits."""
    monkeypatch.setattr(store_windows, "SPACING", 1)
    ids, one, parts = ids_of(windowed, n_tokens), tmp_path / "one", tmp_path / "parts"
    for path in (one, parts) if n_before else ():
        with windowed.context(CTX, store=Disk(path, goal=N), prefill=prefill) as context:
            reading = context.reading(ids)
            while len(context.tokens) < n_before:
                reading.step()
    build_pack(windowed, one, ids, CTX, prefill)
    build_pack_in_blocks(windowed, parts, ids, prefill, CTX)
    assert saved(parts) == saved(one)
    assert "windows stop" in str(pack_info(parts).prefill)
    logits = []
    for path in (one, parts):
        with windowed.context(CTX, store=Disk(path, read_only=True)) as context:
            context.truncate(n_tokens - 1100)  # from a checkpoint
            logits.append(context.prefill(ids[n_tokens - 1100 :]))
    assert (logits[0] == logits[1]).all()


def test_windows_of_a_block_that_was_stopped_go_on(windowed: Model, tmp_path: Path) -> None:
    ids = ids_of(windowed, N)
    build_pack(windowed, tmp_path / "one", ids, CTX, STOP)
    stopped_in(windowed, tmp_path / "pack", ids, "block 3 of 3", 1536, STOP)
    build_pack_in_blocks(windowed, tmp_path / "pack", ids, STOP, CTX)
    assert saved(tmp_path / "pack") == saved(tmp_path / "one")


def test_a_part_that_lacks_what_its_windows_reach_is_damaged(
    windowed: Model, tmp_path: Path
) -> None:
    """Zeros stand for what no window reaches, before the part, and for nothing else."""
    ids, pack = ids_of(windowed, N), tmp_path / "pack"
    stopped_in(windowed, pack, ids, "block 3 of 3", 1536, STOP)
    first = 2 * 2048 // SEGMENT
    part = PartFolder(max(parts_folder(pack).glob("0*")))
    assert part.first == first and not any(part.read_end({}, first - 1))
    with pytest.raises(PackDamaged, match=f"lacks the last tokens of segment {first} "):
        part.read_end({}, first)
