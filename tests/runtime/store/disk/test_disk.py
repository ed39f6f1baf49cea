"""The KV cache on disk holds what the one in memory holds, and keeps it."""

import ctypes
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.runtime.store import DiskStore, PackError, ProbeSums, RamStore, StoreError
from kvarn.runtime.store.disk import store as disk_store
from kvarn.runtime.store.disk.contents import create
from kvarn.runtime.store.disk.errors import PackDamaged
from kvarn.runtime.store.disk.files import DIGEST, digest
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.format import superblock
from kvarn.runtime.store.disk.format.manifest import Manifest

from .packs import (
    FACTS,
    HEADS,
    ITEM,
    LAYERS,
    check,
    fill,
    fill_column,
    hidden_of,
    make,
    opened,
    ram_twin,
    random_tokens,
    save,
    write,
)

SIZES = [1, 15, 16, 17, SEGMENT - 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT + 500]


def segment_bytes(store: DiskStore | RamStore, layer: int, segment: int) -> bytes:
    n = store.layout.segment_bytes(store.n_kv_heads)
    return bytes((ctypes.c_char * n).from_address(int(store.segments(layer)[segment])))


@pytest.mark.parametrize("kinds", [("f16", "f16"), ("q8_0", "q4_0")])
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_reopened_pack_has_the_bytes_of_memory(
    tmp_path: Path, kinds: tuple[str, str], n: int, io: str
) -> None:
    tokens, path = random_tokens(n), tmp_path / "pack"
    make(path, *kinds)
    store = opened(path)
    for start in range(0, n, 512):
        fill(store, tokens[: start + 512], start)
        save(store, tokens[: start + 512])
    store.close()
    again, ram = opened(path, writable=False, io=io), ram_twin(tokens, *kinds)
    assert again.saved.tokens == tokens
    np.testing.assert_array_equal(again.saved.hidden, hidden_of(tokens))
    for layer in range(LAYERS):
        for segment in range(-(-n // SEGMENT)):
            assert segment_bytes(again, layer, segment) == segment_bytes(ram, layer, segment)


def test_what_is_not_committed_is_not_kept(pack: Path) -> None:
    tokens = random_tokens(40)
    store = opened(pack)
    fill(store, tokens[:30], 0)
    save(store, tokens[:30])
    fill(store, tokens, 30)
    store.close()
    assert opened(pack).saved.tokens == tokens[:30]


@pytest.mark.parametrize(
    ("n", "cut", "more"),
    [
        (30, 10, 5),
        (30, 0, 0),
        (1500, 1100, 0),
        (1500, 1100, 300),
        (1500, 900, 0),
        (1500, 900, 1200),
        (3000, 1024, 10),
        (3000, 0, 2048),
        (2048, 2047, 1),
        (2048, 2047, 0),
    ],
)
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("copied", [False, True])
def test_tokens_cut_off_are_gone_and_replaced(
    pack: Path,
    n: int,
    cut: int,
    more: int,
    between: bool,
    copied: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """between: the pack is opened again after the first tokens, and after the cut. copied: the
    column is copied to memory then."""
    monkeypatch.setattr(disk_store, "WORTH_COPYING", 1 if copied else 1 << 60)
    tokens = random_tokens(n)
    store = opened(pack)
    fill(store, tokens, 0)
    fill_column(store, tokens)
    save(store, tokens)
    if between:
        store.close()
        store = opened(pack)
    tokens = tokens[:cut]
    if between:
        save(store, tokens)
        store.close()
        store = opened(pack)
        check(store, tokens)
    tokens = tokens + random_tokens(more, seed=1)
    if more:
        fill(store, tokens, cut)
        fill_column(store, tokens)
    save(store, tokens)
    check(store, tokens)
    store.reserve(len(tokens) + 1)  # what is on disk is read from there now
    check(store, tokens)
    store.close()
    for io in ("mmap", "pread"):
        again = opened(pack, writable=False, io=io)
        assert again.saved.tokens == tokens
        check(again, tokens)


def test_columns_in_use_are_copied_to_memory_where_there_is_room(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = random_tokens(2 * SEGMENT + 5)
    store = opened(pack)
    fill(store, tokens, 0)
    fill_column(store, tokens)
    save(store, tokens)
    store.close()
    n_bytes = 2 * LAYERS * HEADS * SEGMENT * ITEM
    beside = 2 * LAYERS * store.layout.segment_bytes(HEADS) + disk_store.ROOM_LEFT
    monkeypatch.setattr(disk_store, "WORTH_COPYING", n_bytes)
    for room, copied in ((n_bytes + beside, n_bytes), (n_bytes + beside - 1, 0)):
        monkeypatch.setattr(disk_store, "available_bytes", lambda room=room: room)
        again = opened(pack, writable=False)
        before = again.n_bytes
        assert again.copied_bytes == 0  # what no method asks for stays mapped
        for _ in range(2):
            again.column("signatures", ITEM)
            assert (again.copied_bytes, again.n_bytes - before) == (copied, copied)
        check(again, tokens)
    monkeypatch.setattr(disk_store, "available_bytes", lambda: 1 << 40)
    monkeypatch.setattr(disk_store, "WORTH_COPYING", n_bytes + 1)
    again.column("signatures", ITEM)
    assert again.copied_bytes == 0
    index = pack / "index-signatures"
    index.write_bytes(b"\1" + index.read_bytes()[1:])
    monkeypatch.setattr(disk_store, "WORTH_COPYING", 1)
    with pytest.raises(PackDamaged, match="index-signatures is damaged in slot 0"):
        opened(pack, writable=False).column("signatures", ITEM)


def test_cutting_in_the_open_segment_many_times_does_not_grow_the_pack(pack: Path) -> None:
    tokens = random_tokens(1000)
    store = opened(pack)
    for _ in range(12):
        fill(store, tokens, 0)
        save(store, tokens)
    tails = list(pack.glob("tail-*"))
    assert sum(path.stat().st_size for path in tails) < 12_000 * 200
    assert len(tails) <= 2
    store.close()
    check(opened(pack), tokens)


def test_readers_stand_beside_the_writer_and_see_whole_commits(pack: Path) -> None:
    tokens = random_tokens(2600)
    store = opened(pack)
    readers: list[tuple[int, DiskStore]] = []
    for n in (10, 700, 1024, 1500, 2600):
        fill(store, tokens[:n], readers[-1][0] if readers else 0)
        save(store, tokens[:n])
        readers.append((n, opened(pack, writable=False)))
    for n, reader in readers:
        assert reader.saved.tokens == tokens[:n]
        check(reader, tokens[:n])


def test_sessions_on_one_pack_go_on_in_memory(pack: Path) -> None:
    tokens = random_tokens(1500)
    write(pack, tokens, column=False)
    first, second = opened(pack, writable=False), opened(pack, writable=False)
    one, two = tokens + random_tokens(900, seed=2), tokens[:800] + random_tokens(400, seed=3)
    fill(first, one, 1500)
    fill(second, two, 800)
    save(first, one)
    check(first, one)
    check(second, two)
    assert opened(pack).saved.tokens == tokens


def test_a_commit_says_how_many_tokens_were_a_prompt(pack: Path) -> None:
    """Those of older versions do not, which counts as none; more than there are is not sound."""
    tokens, store = random_tokens(40), opened(pack)
    fill(store, tokens, 0)
    store.commit(tokens, None, 30)
    assert opened(pack, writable=False).saved.n_prompt == 30
    commit = replace(store.folder.state().commit, probe={1: ProbeSums(3, 2.5, 1 / 3)})
    data = superblock.encode(commit, None)
    assert superblock.decode(data, FACTS.n_embd) == (commit, None)
    head = superblock._HEAD.size
    body = json.loads(data[head + DIGEST :])
    for changes, n_prompt in (({}, 30), ({"n_prompt": 41}, None), ({"n_prompt": -1}, None)):
        assert _n_prompt({**body, **changes}) == n_prompt
    assert _n_prompt({key: body[key] for key in body if key not in ("n_prompt", "probe")}) == 0


def _n_prompt(body: dict) -> int | None:
    """What a superblock with this body says; None if it is not sound."""
    raw = json.dumps(body).encode()
    head = superblock._HEAD.pack(superblock._MAGIC, len(raw), 0)
    found = superblock.decode(head + digest(raw, head) + raw, FACTS.n_embd)
    return None if found is None else found[0].n_prompt


def test_there_is_one_writer(pack: Path) -> None:
    store = opened(pack)
    with pytest.raises(PackError, match="another process or context is writing"):
        opened(pack)
    store.close()
    opened(pack)


def test_columns_are_kept_in_whole_segments(pack: Path) -> None:
    tokens = random_tokens(2500)
    write(pack, tokens)
    again = opened(pack)
    assert again.column("signatures", ITEM).filled.tolist() == [2048] * LAYERS
    check(again, tokens)
    fill_column(again, tokens)
    check(again, tokens)
    with pytest.raises(StoreError, match="holds 4 bytes per token, expected 8"):
        again.column("signatures", 8)
    with pytest.raises(StoreError, match="cannot be stored"):
        again.column("../signatures", 8)


def test_a_column_made_later_is_kept_too(pack: Path) -> None:
    tokens = random_tokens(2500)
    store = opened(pack)
    fill(store, tokens, 0)
    save(store, tokens)
    fill_column(store, tokens)
    save(store, tokens)
    store.close()
    assert opened(pack).column("signatures", ITEM).filled.tolist() == [2048] * LAYERS


def test_writing_an_item_again_reaches_neither_file_nor_signal(pack: Path) -> None:
    tokens = random_tokens(1024)
    write(pack, tokens)
    again = opened(pack)
    again.column("signatures", ITEM).filled[:] = 0
    fill_column(again, random_tokens(1024, seed=5))
    again.close()
    check(opened(pack), tokens)


def test_a_million_tokens_and_64_gb(tmp_path: Path) -> None:
    """Segment 1,023 lies in a slot beyond 64 GB; the file is sparse."""
    facts = replace(FACTS, n_layers=1, n_kv_heads=8, head_dim=128)
    path = tmp_path / "pack"
    create(path, Manifest(facts, "f16", "f16", False))
    store = DiskStore(PackFolder(path, writable=True))
    n_slots = -(-64 * 10**9 // store.layout.segment_bytes(8))
    store._writer._next_slot[""] = n_slots
    k = np.ones((SEGMENT, 8, 128), np.float32)
    store.reserve(SEGMENT)
    store.append(0, k, k, 0)
    store.commit([7] * SEGMENT, None)
    store.close()
    assert (path / "layer-000.kv").stat().st_size > 64e9
    assert (path / "layer-000.kv").stat().st_blocks * 512 < 64e6
    again = DiskStore(PackFolder(path))
    one = np.frombuffer(segment_bytes(again, 0, 0), np.float16)
    assert again.saved.tokens == [7] * SEGMENT
    assert (one == 1).all()
