"""Memory given out bit by bit."""

import numpy as np
import pytest

from kvarn.jit.arena import PIECE, Arena, aligned


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


def test_aligned_buffers_start_on_a_cache_line():
    for n in (1, 3, 64, 1001):
        buffer = aligned(n, np.float32)
        assert buffer.ctypes.data % 64 == 0
        assert buffer.shape == (n,) and buffer.dtype == np.float32
