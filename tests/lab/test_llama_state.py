"""llama.cpp's state with its cells repeated: laid out as llama.cpp lays it out, and taken by it."""

import struct
from pathlib import Path

import numpy as np
import pytest

from kvarn.system.errors import KvarnError
from lab.peers.llama_state import MAGIC, repeated
from lab.peers.model import Shape, write_model

SMALL = Shape(n_layers=2, n_embd=64, n_heads=2, n_kv_heads=1, head_dim=32, n_ff=64, n_vocab=512)


def state_of(k: np.ndarray, v: np.ndarray, transposed: bool) -> np.ndarray:
    """A state as `state_seq_get_data` has it; k, v: bytes [layers][cells][item]."""
    layers, cells, item = k.shape
    out = struct.pack("<IiII", MAGIC, 0, 1, cells)
    out += b"".join(struct.pack("<iIi", position, 1, 0) for position in range(cells))
    out += struct.pack("<2I", transposed, layers)
    for layer in k:
        out += struct.pack("<iQ", 1, item) + layer.tobytes()
    for layer in v:
        if transposed:
            halves = layer.reshape(cells, item // 2, 2)
            out += struct.pack("<i2I", 1, 2, item // 2) + halves.transpose(1, 0, 2).tobytes()
        else:
            out += struct.pack("<iQ", 1, item) + layer.tobytes()
    return np.frombuffer(out, np.uint8)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [3, 4, 10])
def test_cells_are_repeated_at_positions_of_their_own(n: int, transposed: bool) -> None:
    rng = np.random.default_rng(0)
    k, v = (rng.integers(0, 256, (2, 4, 6), np.uint8) for _ in range(2))
    around = np.arange(n) % 4
    expected = state_of(k[:, around], v[:, around], transposed)
    np.testing.assert_array_equal(repeated(state_of(k, v, transposed), n), expected)


def test_other_bytes_are_refused() -> None:
    ones = np.ones((2, 4, 6), np.uint8)
    state = state_of(ones, ones, False)
    for wrong in (state[:-1], np.append(state, state[:1]), state[:20], state[4:]):
        with pytest.raises(KvarnError, match=r"llama\.cpp"):
            repeated(wrong, 10)


@pytest.mark.parametrize("flash", [False, True])
def test_llama_cpp_takes_it(tmp_path: Path, flash: bool) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from lab.peers import worker_llama

    path = tmp_path / "small.gguf"
    write_model(path, "q8_0", SMALL)
    peer = worker_llama.Peer(str(path), 512, 1, flash, "f16", 20)
    peer.fill(300)
    assert peer.n_tokens == 300
    worker_llama.answer(peer, {"n_prompt": 0, "n_gen": 2, "n_depth": 300})
    memory = worker_llama.llama_cpp.llama_get_memory(peer.context)
    assert worker_llama.llama_cpp.llama_memory_seq_pos_max(memory, 0) == 301
