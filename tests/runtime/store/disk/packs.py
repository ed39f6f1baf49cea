"""Small packs whose K and V follow from position and token, so that any state can be checked."""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvarn.ops.arrays import F32
from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.store import DiskStore, RamStore
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.contents import create
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.format.manifest import Manifest, ModelFacts
from kvarn.runtime.store.states import States

LAYERS, HEADS, HEAD_DIM, EMBD = 2, 1, 16, 8
FACTS = ModelFacts("a small model", "0123456789abcdef", LAYERS, HEADS, HEAD_DIM, EMBD)
ITEM = 4  # bytes of the column `signatures`
WINDOWS = (0, 100)
"""Of a pack whose second layer has a window."""
MIXED = (90, 0)
"""Of a pack whose first layer has a window, and heads of its own."""
MIXED_HEADS = (3, 40), (HEADS, HEAD_DIM)

STATES = [[(3, 5)], [(16,), (2, 4)]]
"""Of a pack whose model has layers that carry a state."""


def keys_of(
    layer: int,
    positions: NDArray[np.int64],
    tokens: NDArray[np.int64],
    heads: tuple[int, int] = (HEADS, HEAD_DIM),
) -> F32:
    """float32 (T, J, E): different for every layer, position and token."""
    seeds = (positions * 7919 + tokens * 104729 + layer * 31)[:, None, None]
    lanes = np.arange(heads[0] * heads[1]).reshape(1, *heads)
    return np.sin(seeds * 0.37 + lanes * 1.7).astype(np.float32)


def items_of(layer: int, positions: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray:
    """uint32 (J, T): what the column holds of each token."""
    one = (positions * 2654435761 + tokens * 97 + layer).astype(np.uint32)
    return np.repeat(one[None], HEADS, 0)


def hidden_of(tokens: Sequence[int]) -> F32:
    return np.full(EMBD, 1.0 + len(tokens) + (tokens[-1] if tokens else 0) / 7, np.float32)


def fill(store: DiskStore | RamStore, tokens: Sequence[int], start: int) -> None:
    """Append tokens[start:], as a context does, and more before them where the store cannot go on
    after just `start` tokens."""
    start = store.go_back(start)
    ids, positions = np.array(tokens[start:]), np.arange(start, len(tokens))
    store.cut(start)
    store.reserve(len(tokens))
    for layer in range(LAYERS):
        heads = store.kv_heads_of(layer), store.layout_of(layer).head_dim
        k = keys_of(layer, positions, ids, heads)
        store.append(layer, k, -k, start)
    while store.states is not None and start < len(tokens):
        stop = min(len(tokens), (start // 512 + 1) * 512)  # a pass
        store.states.begin(start, stop - start)
        store.states.memory += states_of(tokens[start:stop])
        store.states.end(stop)
        start = stop


def states_of(tokens: Sequence[int]) -> F32:
    """What layers carry after these tokens: whole numbers, one more for each token."""
    lanes = np.arange(States(STATES).memory.size)
    counts = np.bincount(np.asarray(tokens, np.int64), minlength=1000)
    return (counts @ ((np.arange(1000)[:, None] * 7 + lanes) % 13)).astype(np.float32)


def fill_column(store: DiskStore, tokens: Sequence[int]) -> None:
    """Bring the column `signatures` up to the tokens, from where it ends."""
    column = store.column("signatures", ITEM)
    for layer in range(LAYERS):
        first = int(column.filled[layer])
        positions, ids = np.arange(first, len(tokens)), np.array(tokens[first:], np.int64)
        items = items_of(layer, positions, ids)
        for segment in range(first // SEGMENT, -(-len(tokens) // SEGMENT)):
            inside = positions // SEGMENT == segment
            memory = column_memory(store, layer, segment)
            memory[:, positions[inside] % SEGMENT] = items[:, inside]
        column.filled[layer] = len(tokens)


def column_memory(store: DiskStore, layer: int, segment: int) -> NDArray[np.uint32]:
    """uint32 (J, 1,024) at the column's address."""
    address = int(store.column("signatures", ITEM).segments(layer)[segment])
    memory = (ctypes.c_char * (HEADS * SEGMENT * ITEM)).from_address(address)
    return np.frombuffer(memory, np.uint32).reshape(HEADS, SEGMENT)


def write(path: Path, tokens: Sequence[int], column: bool = True) -> None:
    """Fill the pack with these tokens, and the column `signatures`; save and close it."""
    store = opened(path)
    fill(store, tokens, 0)
    if column:
        fill_column(store, tokens)
    save(store, tokens)
    store.close()


def holds(path: Path, tokens: Sequence[int]) -> bool:
    """Whether the pack is sound and holds these tokens."""
    store = opened(path, writable=False)
    check(store, tokens)
    found = store.saved.tokens == tokens
    store.close()
    return found and verify(path) == []


def check(store: DiskStore, tokens: Sequence[int]) -> None:
    """K, V and the filled part of the column are what these tokens have; of a layer with a window,
    what a later token can read is there."""
    positions, ids = np.arange(len(tokens)), np.array(tokens, np.int64)
    windows = store.folder.manifest.windows or (len(tokens),) * LAYERS
    for layer in range(LAYERS if tokens else 0):
        first = store.first(layer)
        assert first <= max(0, len(tokens) - (windows[layer] or len(tokens)))
        layout, n_heads = store.layout_of(layer), store.kv_heads_of(layer)
        k, v = read_kv(store.segments(layer), layout, n_heads, first, len(tokens))
        wanted = keys_of(layer, positions[first:], ids[first:], (n_heads, layout.head_dim))
        if store.layout.k_type == "f16":
            wanted = wanted.astype(np.float16).astype(np.float32)
        bound = 0.0 if store.layout.k_type == "f16" else 0.2
        assert np.abs(k - wanted).max() <= bound
        assert np.abs(v + wanted).max() <= bound
        if "signatures" not in store.columns:
            continue
        n = int(store.column("signatures", ITEM).filled[layer])
        items = items_of(layer, positions[:n], ids[:n])
        for segment in range(-(-n // SEGMENT)):
            part = items[:, segment * SEGMENT : (segment + 1) * SEGMENT]
            found = column_memory(store, layer, segment)[:, : part.shape[1]]
            np.testing.assert_array_equal(found, part)
    if store.states is not None:
        n = store.go_back(len(tokens))
        np.testing.assert_array_equal(store.states.memory, states_of(tokens[:n]))


def make(
    path: Path,
    k: str = "f16",
    v: str = "f16",
    windows: tuple[int, ...] = (),
    states: bool = False,
) -> None:
    n_bytes = States(STATES).memory.nbytes if states else 0
    model = replace(FACTS, heads=MIXED_HEADS) if windows == MIXED else FACTS
    facts = Manifest(model, k, v, False)
    create(path, replace(facts, windows=windows, state_bytes=n_bytes))


def opened(path: Path, writable: bool = True, io: str = "mmap") -> DiskStore:
    folder = PackFolder(path, writable)
    states = States(STATES) if folder.manifest.state_bytes else None
    return DiskStore(folder, io, states)  # type: ignore[arg-type]


def save(store: DiskStore, tokens: Sequence[int]) -> None:
    store.commit(tokens, hidden_of(tokens) if tokens else None)


def random_tokens(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 1000, n).tolist()


def ram_twin(tokens: Sequence[int], k: str, v: str) -> RamStore:
    ram = RamStore(TileLayout(HEAD_DIM, k, v), LAYERS, HEADS)
    fill(ram, tokens, 0)
    return ram
