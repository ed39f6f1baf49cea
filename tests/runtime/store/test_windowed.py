"""Layers with a window in memory: beside a store that holds all, through any appends and cuts."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.store import RamStore, windowed
from kvarn.runtime.store.windowed import MOST_WINDOW, windows_of

LAYERS, HEADS, HEAD_DIM = 3, 2, 16
MOST = 30 * SEGMENT


def config_of(*windows: int | None) -> Any:
    return SimpleNamespace(kv_layers=[SimpleNamespace(window=window) for window in windows])


def test_long_windows_are_held_whole() -> None:
    assert windows_of(config_of(None, 512, MOST_WINDOW, MOST_WINDOW + 1)) == (
        0,
        512,
        MOST_WINDOW,
        0,
    )
    assert windows_of(config_of(None, MOST_WINDOW + 1)) == ()


class Twins:
    """The same tokens in a store that holds what can be read, and in one that holds all."""

    def __init__(self, windows: tuple[int, ...]) -> None:
        layout = TileLayout(HEAD_DIM, "q8_0", "f16")
        self.windows = windows
        self.store = RamStore(layout, LAYERS, HEADS, windows)
        self.whole = RamStore(layout, LAYERS, HEADS)
        self.n = 0

    def append(self, rows: np.ndarray) -> None:
        """rows (T, J, E), after the tokens held."""
        for store in (self.store, self.whole):
            store.cut(self.n)
            store.reserve(self.n + len(rows))
            for layer in range(LAYERS):
                store.append(layer, rows + layer, rows - layer, self.n)
        self.n += len(rows)

    def compare(self) -> None:
        """A later token reads the same in both, also one in the place of the last."""
        for layer, window in enumerate(self.windows):
            first = self.store.first(layer)
            assert first <= max(0, self.n - (window or self.n))
            found, wanted = (
                read_kv(store.segments(layer), store.layout, HEADS, first, self.n)
                for store in (self.store, self.whole)
            )
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("windows", [(0, 100, 0), (512, 0, 512), (1500, 40, 0), (7, 1024, 128)])
@pytest.mark.parametrize("spacing", [2, 16])
def test_through_any_appends_and_cuts(
    windows: tuple[int, ...], spacing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windowed, "SPACING", spacing)
    source, rng = random.Random(spacing), np.random.default_rng(spacing)
    twins, pinned = Twins(windows), 0
    every = spacing * -(-max(windows) // SEGMENT) * SEGMENT
    for _ in range(60):
        if source.random() < 0.3 and twins.n:
            held = twins.n
            place = source.choice((pinned, held - 1, source.randint(0, held)))
            twins.n = twins.store.go_back(place)
            assert place - every < twins.n <= place
            assert twins.n == place or place not in (pinned, held, held - 1)
            assert twins.n == place or held - place > SEGMENT
        else:
            for n in [source.choice((1, 30, 512))] * source.choice((1, 3, 9)):
                twins.append(rng.normal(size=(n, HEADS, HEAD_DIM)).astype(np.float32))
        if source.random() < 0.1:
            pinned = twins.n
            twins.store.pin(pinned)
        pinned = min(pinned, twins.n)
        if pinned == twins.n:  # a cut to it may have dropped it
            twins.store.pin(pinned)
        if twins.n:
            twins.compare()


def test_memory_stays_within_what_is_told() -> None:
    twins = Twins((512, 0, 512))
    rows = np.ones((512, HEADS, HEAD_DIM), np.float32)
    for _ in range(MOST // 512):
        twins.append(rows)
        assert twins.store.n_bytes <= twins.store.bytes_for(twins.n)
    told = twins.store.bytes_for(MOST)
    assert told < 0.55 * twins.whole.bytes_for(MOST)
    assert twins.store.tokens_in(told) == MOST
    assert twins.store.tokens_in(told - 1) == MOST - SEGMENT
    assert twins.store.growth(MOST, MOST) == told - twins.store.n_bytes
