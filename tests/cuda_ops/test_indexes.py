"""Indexes of a context on a device: keys launch by launch, items to the host and back."""

import numpy as np
import torch

from kvarn.cuda_ops.device import CudaDevice
from kvarn.cuda_ops.select.hash import resident as hash_resident
from kvarn.cuda_ops.select.sketch import resident as sketch_resident
from kvarn.ops import select as ops
from kvarn.ops.attention import TileLayout, append_kv
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.cpu import CPU

LAYOUT, HEADS, N, FIRST = TileLayout(64, "q8_0", "f16"), 2, 1060, 1015


def _stored() -> tuple[np.ndarray, np.ndarray]:
    """Segments with the keys of N tokens, and their addresses."""
    keys = np.random.default_rng(13).standard_normal((N, HEADS, 64)).astype(np.float32)
    memory = np.zeros((2, LAYOUT.segment_bytes(HEADS)), np.uint8)
    places = memory.ctypes.data + memory.shape[1] * np.arange(2)
    append_kv(keys, keys, places, LAYOUT, 0)
    return memory, places


def test_sketches_of_more_keys_than_a_launch_takes(device, monkeypatch) -> None:
    monkeypatch.setattr(sketch_resident, "ROWS", 16)
    memory, places = _stored()
    centre = np.random.default_rng(14).standard_normal((HEADS, 64)).astype(np.float32)
    columns = [np.full((2, HEADS * SEGMENT * n), 0x5A, np.uint8) for n in (8, 2)]
    got = [torch.tensor(x, device=device) for x in columns]
    sketches = sketch_resident.Sketches(HEADS, HEADS, LAYOUT, N, 4, 5, device)
    kv, far = (torch.tensor(x, device=device) for x in (memory, centre))
    sketches.index(far, kv, *got, FIRST, N - FIRST)
    addresses = [x.ctypes.data + x[0].nbytes * np.arange(2) for x in columns]
    ops.sketch_keys(ops.Rotation.random(64, 5), centre, places, LAYOUT, *addresses, FIRST, N)
    for a, b in zip(got, columns, strict=True):
        np.testing.assert_array_equal(a.cpu().numpy(), b)


def test_signatures_of_more_keys_than_a_launch_takes(device, monkeypatch) -> None:
    """They are those of a single launch."""
    kv = torch.tensor(_stored()[0], device=device)
    planes = ops.simhash_network(ops.hyperplanes(64, 32, (7, 0), "by element"))
    found = []
    for rows in (N - FIRST, 16):
        monkeypatch.setattr(hash_resident, "ROWS", rows)
        networks = {0: ((planes,), (planes,))}
        signatures = hash_resident.Signatures(networks, HEADS, HEADS, LAYOUT, N, 5, device)
        items = torch.full((2, HEADS * SEGMENT * 4), 0x5A, dtype=torch.uint8, device=device)
        signatures.index(0, kv, items, FIRST, N - FIRST)
        found.append(items.cpu().numpy())
    np.testing.assert_array_equal(found[1], found[0])
    assert (found[0] != 0x5A).any(1).all()


def test_items_are_those_of_the_cpu(device) -> None:
    """As read, by heads, and written back: of several segments and heads."""
    gpu, n_bytes = CudaDevice(device), 5
    memory = np.random.default_rng(0).integers(0, 256, (3, 2 * SEGMENT * n_bytes), np.uint8)
    places = memory.ctypes.data + memory.shape[1] * np.arange(3)
    there = torch.tensor(memory, device=device)
    items = CPU.read_items(places, 2, n_bytes)
    np.testing.assert_array_equal(gpu.read_items(there, 2, n_bytes), items)
    gpu.write_items(there[1:], items[:, : 2 * SEGMENT])
    CPU.write_items(places[1:], items[:, : 2 * SEGMENT])
    np.testing.assert_array_equal(there.cpu().numpy(), memory)
