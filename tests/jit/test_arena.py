"""Memory given out bit by bit."""

import errno
import mmap
from pathlib import Path

import numpy as np
import pytest

from kvarn.jit import arena
from kvarn.jit.arena import HUGE, PIECE, Arena, aligned

ON_LINUX = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="needs Linux")


@pytest.mark.parametrize("n_bytes", [0, 100, PIECE + 5])
def test_everyone_gets_memory_of_their_own_on_a_cache_line(n_bytes):
    arena = Arena(n_bytes)
    arena.populate()
    pieces = [arena.take(n) for n in (1, 64, PIECE, 100, PIECE + 1)]
    assert [len(piece) for piece in pieces] == [1, 64, PIECE, 100, PIECE + 1]
    assert not any(piece.ctypes.data % 64 for piece in pieces)
    for i, piece in enumerate(pieces):
        piece[:] = i
    assert all((piece == i).all() for i, piece in enumerate(pieces))


def test_memory_stays_with_who_took_it():
    arena = Arena(1000)
    piece = arena.take(1000)
    piece[:] = 7
    del arena
    assert piece.sum() == 7000


def test_memory_that_someone_took_is_not_touched():
    memory = Arena(3 * HUGE)
    piece = memory.take(2 * HUGE)
    piece[:] = 7
    memory.populate()
    assert (piece == 7).all()


@ON_LINUX
@pytest.mark.parametrize("seconds, n_asked", [(0.0009, 70 << 20), (0.0011, HUGE)])
def test_huge_pages_are_asked_for_while_they_come_quickly(monkeypatch, seconds, n_asked):
    """`seconds` is what a page takes. Linux gives them for whole, aligned pages."""
    asked, now = [], [0.0]

    def ask(mapping, first, n_bytes):
        asked.append((np.frombuffer(mapping, np.uint8).ctypes.data + first, n_bytes))
        now[0] += seconds * n_bytes / HUGE

    def unaligned(n_bytes):
        return memoryview(mmap.mmap(-1, n_bytes + mmap.PAGESIZE))[mmap.PAGESIZE :]

    monkeypatch.setattr(arena, "private_mapping", unaligned)
    monkeypatch.setattr(arena, "ask_for_huge_pages", ask)
    monkeypatch.setattr(arena.time, "thread_time", lambda: now[0])
    memory = Arena(70 << 20)
    memory.populate()
    assert sum(n_bytes for _, n_bytes in asked) == n_asked
    assert all(address % HUGE == 0 for address, _ in asked)
    assert memory.take(1).ctypes.data == asked[0][0]


@ON_LINUX
def test_memory_that_touched_pages_take_can_be_huge():
    """Mappings are private, and advised."""
    memory = Arena(4 * HUGE)
    memory.populate()
    address, inside = memory.take(1).ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *words = line.split()
        if "-" in first and not first.endswith(":"):
            start, stop = (int(end, 16) for end in first.split("-"))
            inside, permissions = start <= address < stop, words[0]
        elif inside and first == "VmFlags:":
            assert permissions == "rw-p" and "hg" in words
            return
    raise AssertionError("the mapping is not there")


@ON_LINUX
def test_kernels_without_huge_pages_give_small_ones():
    class Mapping(mmap.mmap):
        def madvise(self, *_):
            raise OSError(errno.EINVAL, "Invalid argument")

    arena.ask_for_huge_pages(Mapping(-1, HUGE), 0, HUGE)


def test_aligned_buffers_start_on_a_cache_line():
    for n in (1, 3, 64, 1001):
        buffer = aligned(n, np.float32)
        assert buffer.ctypes.data % 64 == 0
        assert buffer.shape == (n,) and buffer.dtype == np.float32
