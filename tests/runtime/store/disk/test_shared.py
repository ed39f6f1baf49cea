"""Segments in memory are the same for all that read them, and no writer changes them.

The oracle of what a segment holds is the digest in the pack's log.
"""

from __future__ import annotations

import gc
import shutil
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.runtime.store import DiskStore
from kvarn.runtime.store.disk import parents
from kvarn.runtime.store.disk import store as disk_store
from kvarn.runtime.store.disk.contents import create
from kvarn.runtime.store.disk.errors import PackDamaged
from kvarn.runtime.store.disk.files import digest
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.format.log import KV
from kvarn.runtime.store.disk.format.manifest import Manifest
from kvarn.runtime.store.disk.planes import shared
from kvarn.runtime.store.disk.planes.plane import Plane

from .packs import (
    FACTS,
    ITEM,
    check,
    column_memory,
    fill,
    fill_column,
    holds,
    items_of,
    make,
    opened,
    random_tokens,
    save,
    write,
)

TOKENS = random_tokens(3 * SEGMENT + 200)
OTHER = random_tokens(4 * SEGMENT, seed=1)


@pytest.fixture(autouse=True)
def small_columns_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store, "WORTH_COPYING", 1)


def n_pieces() -> int:
    gc.collect()
    return len(shared._pieces)


def addresses(store: DiskStore) -> list[list[int]]:
    """Of the column's full segments, by layer."""
    column = store.column("signatures", ITEM)
    return [column.segments(layer)[:3].tolist() for layer in range(store.n_layers)]


def planes_of(store: DiskStore) -> list[Plane]:
    return store._planes()


def check_column(store: DiskStore, tokens: list[int]) -> None:
    """The full segments of the column are what was saved of these tokens."""
    positions, ids = np.arange(3 * SEGMENT), np.array(tokens[: 3 * SEGMENT])
    for layer in range(store.n_layers):
        wanted = items_of(layer, positions, ids)
        for n in range(3):
            inside = positions // SEGMENT == n
            np.testing.assert_array_equal(column_memory(store, layer, n), wanted[:, inside])


def check_pieces(stores: list[DiskStore]) -> None:
    """What is shared has the digests of the log."""
    n = 0
    for plane in (plane for store in stores for plane in planes_of(store)):
        for segment, piece in plane._shared.items():
            data = np.frombuffer(piece.memory, np.uint8)[: plane.segment_bytes]
            parts = data.reshape(-1, plane.part_bytes)
            assert tuple(digest(part.data) for part in parts) == plane.places[segment].digests
            n += 1
    assert n


def child_of(parent: Path, path: Path) -> DiskStore:
    folder = PackFolder(parent)
    create(
        path, Manifest(FACTS, "f16", "f16", False, parents.shared_segments(folder, folder.state()))
    )
    store = opened(path)
    store.adopt(folder)
    return store


def test_readers_and_children_hold_one_copy_and_the_last_frees_it(
    pack: Path, tmp_path: Path
) -> None:
    write(pack, TOKENS)
    before = n_pieces()
    stores = [opened(pack, writable=False) for _ in range(3)]
    stores.append(child_of(pack, tmp_path / "child"))
    assert [addresses(store) for store in stores[1:]] == [addresses(stores[0])] * 3
    assert n_pieces() == before + 3
    check_pieces(stores)
    while stores:
        assert n_pieces() == before + 3
        check_column(stores[-1], TOKENS)
        stores.pop().close()
    assert n_pieces() == before


def test_keys_and_values_that_are_read_into_memory_are_held_once(pack: Path) -> None:
    write(pack, TOKENS)
    readers = [opened(pack, writable=False, io="pread") for _ in range(2)]
    first, second = (reader.segments(0)[:3].tolist() for reader in readers)
    assert first == second
    open_segments = {int(reader.segments(0)[3]) for reader in readers}
    assert len(open_segments) == 2
    for reader in readers:
        check(reader, TOKENS)


@pytest.mark.parametrize("cut", [0, 100, SEGMENT, 2 * SEGMENT + 7, 3 * SEGMENT + 50])
def test_a_writer_that_goes_on_otherwise_changes_no_reader(pack: Path, cut: int) -> None:
    """A cut into full segments, other tokens and commits, a column that is made anew."""
    write(pack, TOKENS)
    writer, readers = opened(pack), [opened(pack, writable=False) for _ in range(2)]
    for store in (writer, *readers):
        store.column("signatures", ITEM)
    tokens = [*TOKENS[:cut], *OTHER]
    fill(writer, tokens, cut)
    fill_column(writer, tokens)
    check_pieces(readers)
    save(writer, tokens)
    column = writer.column("signatures", ITEM)
    column.restart(SEGMENT)
    fill_column(writer, tokens)
    for reader in readers:
        check(reader, TOKENS)
        check_column(reader, TOKENS)
    check_pieces(readers)
    check_column(writer, tokens)
    check(writer, tokens)
    save(writer, tokens)
    writer.close()
    assert holds(pack, tokens)


def test_another_pack_in_the_same_place_has_segments_of_its_own(pack: Path) -> None:
    write(pack, TOKENS)
    reader = opened(pack, writable=False)
    reader.column("signatures", ITEM)
    shutil.rmtree(pack)
    create(pack, Manifest(FACTS, "f16", "f16", False, None))
    other = OTHER[: len(TOKENS)]
    write(pack, other)
    newer = opened(pack, writable=False)
    newer.column("signatures", ITEM)
    check_column(reader, TOKENS)
    check_column(newer, other)
    assert not set(addresses(reader)[0]) & set(addresses(newer)[0])


@pytest.mark.parametrize("name", ["layer-000.kv", "layer-001.kv"])
def test_a_file_that_is_cut_short_is_told_though_its_segments_are_held(
    pack: Path, name: str
) -> None:
    write(pack, TOKENS)
    reader = opened(pack, writable=False, io="pread")
    with (pack / name).open("r+b") as file:
        file.truncate((pack / name).stat().st_size // 2)
    with pytest.raises(PackDamaged, match=f"{name} is cut short"):
        opened(pack, writable=False, io="pread")
    check(reader, TOKENS)


def test_only_what_is_not_held_yet_needs_memory(pack: Path) -> None:
    write(pack, TOKENS)
    reader = opened(pack, writable=False)
    plane = next(plane for plane in planes_of(reader) if plane.name != KV)
    assert plane.bytes_to_hold == 3 * plane.segment_bytes
    plane.hold()
    other = opened(pack, writable=False)
    assert next(p for p in planes_of(other) if p.name != KV).bytes_to_hold == 0


def test_ids_take_four_bytes_each(tmp_path: Path) -> None:
    """Of packs that are open, beside what each segment takes."""
    n_bytes = []
    for n in (8 * SEGMENT, 24 * SEGMENT):
        path = tmp_path / f"{n}"
        make(path)
        write(path, random_tokens(n), column=False)
        tracemalloc.start()
        reader = opened(path, writable=False)
        gc.collect()
        n_bytes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert reader.saved.tokens == random_tokens(n)
    assert n_bytes[1] - n_bytes[0] < 6 * 16 * SEGMENT


def test_a_reader_follows_a_writer_that_uses_a_name_again(pack: Path) -> None:
    tokens, store, names = TOKENS[: 2 * SEGMENT + 90], opened(pack), []
    reader = PackFolder(pack)
    for start, n in pairwise((0, 700, SEGMENT, 2 * SEGMENT, 2 * SEGMENT + 90)):
        fill(store, tokens[:n], start)
        save(store, tokens[:n])
        assert list(reader.state().tokens) == list(tokens[:n])
        names.append([path.name for path in pack.glob("tail-*")])
    assert names == [["tail-1"], ["tail-1"], [], ["tail-1"]]
