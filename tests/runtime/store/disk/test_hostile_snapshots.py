"""Snapshots of contexts that evict whose checksums are right and whose contents are not."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

import kvarn
from kvarn.ops.attention.layout import TileLayout
from kvarn.runtime.model import Model
from kvarn.runtime.store import PackError
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.system.errors import KvarnError

from ...reading import ids_of
from .sealing import read_snapshot, write_snapshot

Facts = dict[str, int]


def forged(path: Path, change: Callable[[Facts, bytearray], None]) -> None:
    """A snapshot with other facts or contents, and right checksums."""
    facts, content = read_snapshot(path)
    data = bytearray(content)
    change(facts, data)
    write_snapshot(path, facts, bytes(data))


def number(place: int, value: int) -> Callable[[Facts, bytearray], None]:
    """One of the seven numbers that methods which score add to a snapshot."""

    def change(facts: Facts, data: bytearray) -> None:
        struct.pack_into("<q", data, len(data) - facts["n_extra"] + 8 * place, value)

    return change


def twice(facts: Facts, data: bytearray) -> None:
    """The first two slots hold the same token."""
    at = 4 * (facts["n_tokens"] + facts["n_hidden"])
    layout = TileLayout(16)
    at += 2 * layout.segment_bytes(2)  # K and V of two layers
    data[at : at + 4] = data[at + 4 : at + 8]


HOSTILE = {
    **{f"reserved {n}": lambda facts, _, n=n: facts.update(reserved=n) for n in (1 << 40, 4096, 0)},
    "hidden": lambda facts, _: facts.update(n_hidden=0, n_tokens=facts["n_tokens"] + 64),
    "extra": lambda facts, _: facts.update(n_extra=facts["n_extra"] + 8),
    "column": lambda facts, _: facts.update(columns={"positions": 4, "x": 1 << 14}),
    "dropped": number(0, -1),
    "dropped few": number(0, 3),
    "since": number(1, 1 << 40),
    "summed": number(2, -(1 << 63)),
    "first": number(4, 1 << 40),
    "blocks": number(5, 100_000),
    "no blocks": number(5, 0),
    "width": number(6, -1),
    "wide": number(6, 1 << 60),
    "twice": twice,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_snapshots_are_refused_before_they_take_memory(
    tiny: Model, tmp_path: Path, name: str
) -> None:
    keep, path = kvarn.H2O(40, every=16), tmp_path / "evicted"
    with tiny.context(256, keep=keep, store=kvarn.Disk(path)) as context:
        list(context.generate_ids(ids_of(tiny, 600), 4))
    forged(path, HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(KvarnError) as caught:
            tiny.context(256, keep=keep, store=kvarn.Disk(path))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert "snapshot" in str(caught.value) or "holds tokens twice" in str(caught.value)


def test_ids_of_no_vocabulary_are_refused_in_a_snapshot(tiny: Model, tmp_path: Path) -> None:
    keep, path = kvarn.Streaming(40), tmp_path / "evicted"
    with tiny.context(256, keep=keep, store=kvarn.Disk(path)) as context:
        context.prefill(ids_of(tiny, 100))
    forged(path, lambda _, data: struct.pack_into("<I", data, 0, 1 << 20))
    with pytest.raises(PackError, match="token ids outside the model's vocabulary"):
        tiny.context(256, keep=keep, store=kvarn.Disk(path))


def test_keys_of_a_snapshot_that_are_not_finite_are_named(tiny: Model, tmp_path: Path) -> None:
    keep, path = kvarn.Streaming(40), tmp_path / "evicted"
    with tiny.context(256, keep=keep, store=kvarn.Disk(path)) as context:
        context.prefill(ids_of(tiny, 100))

    def change(facts: Facts, data: bytearray) -> None:
        at = 4 * (facts["n_tokens"] + facts["n_hidden"])
        data[at : at + 2] = b"\x00\x7e"  # NaN

    forged(path, change)
    (line,) = verify(path)
    assert f"pack {path}: K of layer 0, KV head 0, slot 0 is not finite" in line
