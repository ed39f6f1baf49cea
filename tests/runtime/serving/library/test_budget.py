"""The library's bytes on disk: never more than allowed, the oldest texts go first."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvarn.runtime.model import Model
from kvarn.runtime.serving.library import Lease, Library
from kvarn.runtime.serving.library.budget import BudgetExceeded
from kvarn.runtime.serving.library.catalogue import LEAST
from kvarn.runtime.store.disk import files
from kvarn.runtime.store.disk.checking.verify import verify

from ...reading import ids_of
from .conftest import Make
from .test_library import N_CTX, PLAIN, anew, answer, read


def on_disk(folder: Path) -> int:
    """Bytes that the files in a folder take."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes on disk after each write."""
    seen: list[int] = []
    for name in ("write_at", "make_room", "replace", "write_file"):
        real: Callable[..., None] = getattr(files, name)

        def watching(*args: object, real: Callable[..., None] = real) -> None:
            real(*args)
            seen.append(on_disk(tmp_path / "serve"))

        monkeypatch.setattr(files, name, watching)
    return seen


def test_a_day_of_prompts_stays_within_its_bytes(
    make: Make, model: Model, watched: list[int], told: list[str]
) -> None:
    """Conversations, agents that share a beginning, documents with questions; several at once."""
    rng, most = random.Random(5), 12 << 20
    library = make(most)
    histories: list[list[int]] = [ids_of(model, 700, seed=s) for s in range(3)]
    n_read = n_cached = 0
    leases: list[tuple[Lease, list[int]]] = []
    for step in range(90):
        base = rng.choice(histories)
        at = rng.choice((len(base), rng.randrange(len(base))))
        ids = [*base[:at], *ids_of(model, rng.choice((20, 200, 900)), seed=100 + step)][-3500:]
        lease = library.open(ids, PLAIN, N_CTX)
        lease.context.prefill(ids[lease.cached : rng.choice((len(ids), lease.cached + 500))])
        n_read, n_cached = n_read + len(ids), n_cached + lease.cached
        leases.append((lease, ids))
        if len(leases) > rng.randrange(4):
            lease, ids = leases.pop(rng.randrange(len(leases)))
            if len(lease.context.tokens) == len(ids):
                histories.append([*ids, *answer(lease, 12)])
            library.release(lease, keep=rng.random() < 0.9)
        if step == 45:
            library, leases = make(most), []
        assert library.n_bytes <= most
    assert max(watched) <= most
    assert max(watched) > most // 2
    assert n_cached > n_read // 4
    library.close()
    folder = library._folder
    assert all(verify(path) == [] for path in folder.iterdir() if path.is_dir())


def test_the_least_recently_used_goes_first(make: Make, model: Model) -> None:
    probe = make()
    probe.release(read(probe, ids_of(model, 1500)))
    one = next(iter(probe._catalogue.entries.values())).n_bytes
    probe._catalogue.remove(next(iter(probe._catalogue.entries.values())))
    library = make(4 * one + (2 << 20))
    texts = [ids_of(model, 1500, seed=s) for s in range(6)]
    for text in texts[:3]:
        library.release(read(library, text))
    library.release(library.open([*texts[0], 1], PLAIN, N_CTX))  # used again
    for text in texts[3:]:
        library.release(read(library, text))
    library = make(4 * one + (2 << 20))
    (how,) = {entry.kv_key for entry in library._catalogue.entries.values()}
    assert how is not None
    tree = library._catalogue.tree(how)
    held = [tree.longest(np.asarray(text, np.uint32)).n_tokens >= LEAST for text in texts]
    assert held[0] and held[-1]
    assert held[1:] == sorted(held[1:])
    assert not held[1]


def test_a_pack_goes_after_those_that_begin_with_it(make: Make, model: Model) -> None:
    library, ids = make(), ids_of(model, 2100)
    library.release(read(library, ids))
    library.release(read(library, [*ids[:1500], *ids_of(model, 700, seed=1)]))
    parent, child = library._catalogue.entries.values()
    assert child.parent is parent
    library._catalogue.touch(child)
    parent.used, child.used = 1.0, 2.0
    removed = []
    library._budget._remove = lambda entry: (
        removed.append(entry),
        library._catalogue.remove(entry),
    )
    library._budget.shrink(0)
    assert removed == [child, parent]
    assert library.n_entries == 0


def test_what_has_no_room_is_read_in_memory(
    make: Make, model: Model, told: list[str], watched: list[int]
) -> None:
    most = 2 << 20
    library, ids = make(most), ids_of(model, 3900)
    lease = read(library, ids)
    np.testing.assert_array_equal(lease.context.logits, anew(model, ids))
    assert any("--cache-size" in line for line in told)
    assert answer(lease)
    library.release(lease)
    assert max(watched) <= most
    assert not library.problem
    again = library.open(ids, PLAIN, N_CTX)
    assert again.cached == 0 or again.context.tokens == ids[: again.cached]


def test_a_branch_without_room_follows_what_was_read(
    make: Make, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, ids = make(), ids_of(model, 900)
    library.release(read(library, ids))

    def refuse(*_: object) -> None:
        raise BudgetExceeded("no room")

    monkeypatch.setattr(library._budget, "reserve", refuse)
    branch = [*ids[:500], *ids_of(model, 60, seed=1)]
    lease = read(library, branch)
    assert lease.cached == 500
    np.testing.assert_array_equal(lease.context.logits, anew(model, branch))
    library.release(lease)
    assert library.n_entries == 1


def test_what_a_branch_begins_with_is_not_removed_for_it(make: Make, model: Model) -> None:
    library, ids = make(), ids_of(model, 900)
    library.release(read(library, ids))
    (entry,) = library._catalogue.entries.values()
    library._budget.most_bytes = library.n_bytes + 1000
    branch = [*ids[:500], *ids_of(model, 60, seed=1)]
    lease = read(library, branch)
    assert lease.cached == 500
    np.testing.assert_array_equal(lease.context.logits, anew(model, branch))
    assert entry.path.exists()
    assert library.n_bytes <= library._budget.most_bytes


def test_a_full_disk_is_told_once_and_memory_goes_on(
    make: Make, model: Model, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library, ids = make(), ids_of(model, 2500)
    first = library.open(ids, PLAIN, N_CTX)
    first.context.prefill(ids[:1100])

    def full(*args: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_at", full)
        first.context.prefill(ids[1100:])
        np.testing.assert_array_equal(first.context.logits, anew(model, ids))
        assert "No space left" in library.problem
        second = read(library, [*ids[:1000], *ids_of(model, 90, seed=1)])  # while it is full
        third = read(library, ids_of(model, 300, seed=2))
        library.release(third)
        turn = [*ids_of(model, 300, seed=2), 5, 6]
        fourth = read(library, turn)
        assert fourth.cached == 300
        np.testing.assert_array_equal(fourth.context.logits, anew(model, turn))
        library.release(fourth)
        library.release(first)
    assert len(told) == 1
    library.release(second)
    library._retry_at = 0.0
    last = read(library, ids)
    assert last.cached >= 1024
    np.testing.assert_array_equal(last.context.logits, anew(model, ids))
    assert not library.problem


def test_without_a_disk_contexts_wait_in_memory(make: Make, model: Model, tmp_path: Path) -> None:
    library, ids = make(0), ids_of(model, 600)
    first = read(library, ids)
    said = answer(first, 10)
    held = len(first.context.tokens)
    library.release(first)
    turn = [*ids, *said, 3, 4]
    second = read(library, turn)
    assert second.cached == held
    library.release(second)
    for seed in range(12):
        library.release(read(library, ids_of(model, 300, seed=10 + seed)))
    assert library.memory_bytes > 0
    assert len(library._idle) <= 8
    assert not (tmp_path / "serve").exists()


def test_two_processes_do_not_share_a_folder(
    make: Make, model: Model, tmp_path: Path, told: list[str]
) -> None:
    make()
    other = Library(model, tmp_path / "serve", 1 << 30, told.append)
    assert "another process" in other.problem
    ids = ids_of(model, 200)
    other.release(read(other, ids))
    assert other.open([*ids, 1], PLAIN, N_CTX).cached == 200
    other.close()
