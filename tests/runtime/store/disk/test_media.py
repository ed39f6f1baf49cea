"""Real media that fail: killed writers, full and read-only disks, files that are cut short."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarn.runtime.store import PackError
from kvarn.runtime.store.disk.checking.verify import verify

from .packs import MIXED, WINDOWS, check, fill, make, opened, random_tokens, save, write

TOKENS = random_tokens(5000)

WRITER = textwrap.dedent(
    """
    import os, signal, sys
    sys.path.insert(0, sys.argv[1])
    import packs
    from kvarn.runtime.store.disk import files

    left = int(sys.argv[3])

    def dying(real):
        def call(*arguments, **options):
            global left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return call

    for name in ("write_at", "make_room", "sync", "remove"):
        setattr(files, name, dying(getattr(files, name)))
    tokens = packs.random_tokens(5000)
    store = packs.opened(packs.Path(sys.argv[2]))
    for stop in range(len(store.saved.tokens) + 250, 5001, 250):
        packs.fill(store, tokens[:stop], stop - 250)
        packs.save(store, tokens[:stop])
    """
)


def killed_again_and_again(path: Path, lives: int, seed: int) -> None:
    """A process writes and is killed at a random call of the medium, `lives` times."""
    source = random.Random(seed)
    here, held = str(Path(__file__).parent), 0
    for _ in range(lives):
        done = subprocess.run(
            [sys.executable, "-c", WRITER, here, str(path), str(source.randint(1, 60))],
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
        reader = opened(path, writable=False)
        assert held <= len(reader.saved.tokens)
        held = len(reader.saved.tokens)
        assert reader.saved.tokens == TOKENS[:held]
        check(reader, TOKENS[:held])
        if held == len(TOKENS):
            shutil.rmtree(path)
            make(path)
            held = 0


@pytest.mark.parametrize("windows", [(), WINDOWS, MIXED])
def test_a_killed_process_leaves_a_commit(tmp_path: Path, windows: tuple[int, ...]) -> None:
    make(tmp_path / "pack", windows=windows)
    killed_again_and_again(tmp_path / "pack", 4, 0)


@pytest.mark.slow
def test_many_killed_processes_leave_a_commit(pack: Path) -> None:
    killed_again_and_again(pack, 60, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1.2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1200k", "none", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_until_it_fails(path: Path) -> tuple[PackError, int]:
    """Append and commit until that fails: the error, and the tokens of the last commit."""
    store = opened(path)
    for stop in range(250, 5001, 250):
        fill(store, TOKENS[:stop], stop - 250)
        try:
            save(store, TOKENS[:stop])
        except PackError as error:
            store.reserve(stop + 1)
            check(store, TOKENS[:stop])
            store.close()
            return error, stop - 250
    raise AssertionError("nothing failed")


def test_a_full_disk_is_one_line_and_loses_nothing(small_disk: Path) -> None:
    path = small_disk / "pack"
    make(path)
    error, n = fill_until_it_fails(path)
    assert "No space left on device" in str(error)
    assert f"of {n:,} tokens" in str(error)
    reader = opened(path, writable=False)
    assert reader.saved.tokens == TOKENS[:n]
    check(reader, TOKENS[:n])
    assert verify(path) == []


def test_a_pack_goes_on_when_the_disk_has_room_again(small_disk: Path) -> None:
    path = small_disk / "pack"
    make(path)
    (small_disk / "other").write_bytes(bytes(600_000))
    _, n = fill_until_it_fails(path)
    (small_disk / "other").unlink()
    store = opened(path)
    fill(store, TOKENS[: n + 250], n)
    save(store, TOKENS[: n + 250])
    store.close()
    check(opened(path), TOKENS[: n + 250])


def test_a_largest_file_size_is_one_line_too(pack: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, limits[1]))
    try:
        error, n = fill_until_it_fails(pack)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "File too large" in str(error)
    check(opened(pack), TOKENS[:n])


def test_a_read_only_medium_is_read(small_disk: Path) -> None:
    path = small_disk / "pack"
    make(path)
    write(path, TOKENS[:1200], column=False)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    check(opened(path, writable=False), TOKENS[:1200])
    with pytest.raises(OSError, match="Read-only file system"):
        opened(path)


@pytest.mark.parametrize("cut", [True, False])
def test_a_vanished_medium_under_a_reader_that_reads(small_disk: Path, cut: bool) -> None:
    """`--io pread`: all is in memory, so nothing that happens to the files is felt."""
    path = small_disk / "pack"
    make(path)
    write(path, TOKENS[:1200], column=False)
    reader = opened(path, writable=False, io="pread")
    if cut:
        for file in path.glob("*.kv"):
            os.truncate(file, 0)
    else:
        subprocess.run(["umount", "-l", str(small_disk)], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", str(small_disk)], check=True)
    more = TOKENS[:900] + TOKENS[2000:3000]
    fill(reader, more, 900)
    check(reader, more)
