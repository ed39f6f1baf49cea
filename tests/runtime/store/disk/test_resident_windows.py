"""A store on another device over a pack with windows: both go back to the same checkpoint.

The device is the CPU with arrays for places, as a GPU has them.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.cpu import Cpu
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.store import windowed
from kvarn.runtime.store.resident import ResidentStore

from .packs import HEADS, WINDOWS, fill, holds, keys_of, make, opened, random_tokens, save

N_CTX = 24 * SEGMENT


class ArrayDevice(Cpu):
    """Places are arrays, uint8 (segments, bytes of a segment)."""

    def append_kv(self, k: Any, v: Any, places: Any, layout: Any, start: int) -> None:
        super().append_kv(k, v, addresses(places), layout, start)

    def read_items(self, places: Any, n_kv_heads: int, item_bytes: int) -> Any:
        return super().read_items(addresses(places), n_kv_heads, item_bytes)

    def write_items(self, places: Any, items: Any) -> None:
        super().write_items(addresses(places), items)


def addresses(places: np.ndarray) -> np.ndarray:
    return places.ctypes.data + places.strides[0] * np.arange(len(places))


def resident(path: Path) -> ResidentStore:
    return ResidentStore(ArrayDevice(), opened(path), N_CTX)  # type: ignore[arg-type]


def compare(store: ResidentStore, tokens: list[int], windows: tuple[int, ...]) -> None:
    ids, n = np.array(tokens, np.int64), len(tokens)
    for layer, window in enumerate(windows):
        first = max(0, n - (window or n))
        assert store.first(layer) <= first
        k, _ = read_kv(addresses(store.segments(layer)), store.layout, HEADS, first, n)
        wanted = keys_of(layer, np.arange(first, n), ids[first:]).astype(np.float16)
        np.testing.assert_array_equal(k, wanted)


@pytest.mark.parametrize("windows", [WINDOWS, (1500, 40)])
def test_what_is_cut_and_read_again_is_saved(
    tmp_path: Path, windows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windowed, "SPACING", 4)
    path, source, tokens = tmp_path / "pack", random.Random(1), random_tokens(11 * SEGMENT + 30)
    make(path, windows=windows)
    store, start = resident(path), 0
    for number in range(8):
        for stop in [*range(start + 512, len(tokens), 512), len(tokens)]:
            fill(store, tokens[:stop], start)  # type: ignore[arg-type]
            start = stop
            if source.random() < 0.7 or stop == len(tokens):
                save(store, tokens[:stop])  # type: ignore[arg-type]
        compare(store, tokens, windows)
        if number % 2:
            store.close()
            assert holds(path, tokens)
            store = resident(path)
        place = source.randint(1, len(tokens))
        start = store.go_back(place)
        assert start <= place
        if start:
            compare(store, tokens[:start], windows)
        tokens = tokens[:place] + random_tokens(3000, number)
