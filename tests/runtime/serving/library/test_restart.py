"""What a library finds after its process was killed, or its files were damaged."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kvarn.runtime.model import Model
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.contents import remove_files

from ...reading import ids_of
from .conftest import Make
from .test_library import N_CTX, PLAIN, anew, read

LIVE = """
import random, sys
from pathlib import Path
import kvarn
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.serving.library import Library
model, folder, seed = kvarn.load(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
library = Library(model, folder, 40 << 20, lambda line: print(line, file=sys.stderr))
texts = [[random.Random(s).randrange(512) for _ in range(2600)] for s in range(3)]
print("ready", flush=True)
leases = []
while True:
    base = rng.choice(texts)
    ids = [*base[: rng.randrange(50, 2600)], *(rng.randrange(512) for _ in range(300))]
    lease = library.open(ids, ContextRequest(), 4096)
    for first in range(lease.cached, len(ids), 512):
        lease.context.prefill(ids[first : first + 512])
    leases.append(lease)
    if len(leases) == 3:
        library.release(leases.pop(rng.randrange(3)))
"""
TEXTS = [[random.Random(s).randrange(512) for _ in range(2600)] for s in range(3)]


def test_killed_processes_leave_what_they_have_read(
    make: Make, model: Model, tmp_path: Path, told: list[str]
) -> None:
    folder, rng = tmp_path / "serve", random.Random(1)
    for seed in range(4):
        command = [sys.executable, "-c", LIVE, str(model.info.path), str(folder), str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(rng.uniform(0.3, 1.5))
            process.kill()
        library = make(40 << 20)
        assert not [line for path in folder.iterdir() if path.is_dir() for line in verify(path)]
        lease = read(library, TEXTS[seed % 3])
        np.testing.assert_array_equal(lease.context.logits, anew(model, TEXTS[seed % 3]))
        assert lease.cached or seed < 2
        library.close()
    assert not told


@pytest.mark.parametrize("name", ["pack.json", "commits", "tokens", "tail-2", "layer-000.kv"])
def test_damaged_packs_are_dropped_and_read_again(
    make: Make, model: Model, told: list[str], tmp_path: Path, name: str
) -> None:
    library, ids = make(), ids_of(model, 1700)
    library.release(read(library, ids))
    library.release(read(library, [*ids[:1500], *ids_of(model, 200, seed=1)]))
    other = ids_of(model, 300, seed=2)
    library.release(read(library, other))
    (path,) = {entry.parent.path for entry in library._catalogue.entries.values() if entry.parent}
    library.close()
    files = sorted(path.glob(name if not name.startswith("tail") else "tail-*"))
    for file in files:
        data = file.read_bytes()
        file.write_bytes(bytes(len(data)) if name == "commits" else data[:-9])
    library = make()
    lease = read(library, ids)
    np.testing.assert_array_equal(lease.context.logits, anew(model, ids))
    assert told and all("removed" in line for line in told)
    assert library.open([*other, 1], PLAIN, N_CTX).cached == 300


def test_a_restart_reads_no_tokens_until_they_are_wanted(
    make: Make, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvarn.runtime.serving.library import catalogue

    library = make()
    for seed in range(6):
        library.release(read(library, ids_of(model, 200, seed=seed)))
    read_: list[Path] = []
    real = catalogue.tokens_of
    monkeypatch.setattr(catalogue, "tokens_of", lambda path: (read_.append(path), real(path))[1])
    library = make()
    assert library.n_entries == 6 and not read_
    assert library.open([*ids_of(model, 200, seed=3), 1], PLAIN, N_CTX).cached == 200
    assert len(read_) == 6


def test_what_is_no_pack_stays(make: Make, model: Model, tmp_path: Path, told: list[str]) -> None:
    folder = tmp_path / "serve" / "mine"
    folder.mkdir(parents=True)
    (folder / "letter.txt").write_text("dear")
    half = tmp_path / "serve" / "half"
    half.mkdir()
    (half / "commits").write_bytes(b"begun")
    library = make()
    library.release(read(library, ids_of(model, 100)))
    assert (folder / "letter.txt").read_text() == "dear"
    assert not half.exists() and not told


@pytest.mark.parametrize("n_removed", range(1, 6))
def test_a_removal_that_was_killed_is_finished(
    make: Make, model: Model, told: list[str], monkeypatch: pytest.MonkeyPatch, n_removed: int
) -> None:
    library, ids, removed = make(), ids_of(model, 1700), []
    library.release(read(library, ids))
    (path,) = library._catalogue.entries
    library.close()
    real = os.unlink

    def unlink(name: str, *, dir_fd: int | None = None) -> None:
        if len(removed) == n_removed:
            raise KeyboardInterrupt
        removed.append(name)
        real(name, dir_fd=dir_fd)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "unlink", unlink)
        remove_files(path)
    assert removed[0] == "commits"
    library = make()
    assert not path.exists() and not library.n_entries and not told


def test_packs_of_the_user_are_begun_with_and_stay(
    make: Make, model: Model, tmp_path: Path
) -> None:
    from kvarn.runtime.packs.pack import build_pack

    ids = ids_of(model, 1800)
    build_pack(model, tmp_path / "book", ids)
    library = make()
    assert list(library.include(tmp_path / "book")) == ids
    question = [*ids, *ids_of(model, 30, seed=1)]
    lease = read(library, question)
    assert lease.cached == len(ids)
    np.testing.assert_array_equal(lease.context.logits, anew(model, question))
    library.release(lease)
    library._budget.shrink(0)
    assert library.n_entries == 0
    assert verify(tmp_path / "book") == []


def test_what_follows_a_pack_of_the_user_is_found_after_a_restart(
    make: Make, model: Model, tmp_path: Path
) -> None:
    """It is of no use only once the pack is gone, or another one has its name."""
    from kvarn.runtime.packs.pack import build_pack, remove_pack

    book, ids = tmp_path / "book", ids_of(model, 1800)
    build_pack(model, book, ids)
    library, question = make(), [*ids, *ids_of(model, 300, seed=1)]
    library.include(book)
    library.release(read(library, question))
    library = make()
    lease = library.open([*question, 1], PLAIN, N_CTX)
    assert lease.cached == len(question)
    library.release(lease)
    assert library.n_entries == 1 and list(library.include(book)) == ids
    library.close()
    remove_pack(book)
    build_pack(model, book, ids_of(model, 1800, seed=2))
    library = make()
    lease = read(library, question)
    assert lease.cached == 0
    np.testing.assert_array_equal(lease.context.logits, anew(model, question))


def test_a_pack_of_the_user_that_has_changed_is_read_anew(
    make: Make, model: Model, tmp_path: Path
) -> None:
    from kvarn.runtime.packs.pack import build_pack, remove_pack

    book, ids, other = tmp_path / "book", ids_of(model, 1800), ids_of(model, 1500, seed=2)
    library = make()
    for text in (ids[:1100], ids, other):
        if text is other:
            remove_pack(book)
        build_pack(model, book, text)
        assert list(library.include(book)) == text
        lease = read(library, question := [*text, *ids_of(model, 70, seed=1)])
        np.testing.assert_array_equal(lease.context.logits, anew(model, question))
        library.release(lease)
