"""The selective scan against the recurrence in float64, and bit for bit however a text is cut."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.cpu import CPU
from kvarn.ops.errors import OpsError
from kvarn.ops.recurrent import ScanHeads
from kvarn.ops.recurrent.api import selective_scan
from kvarn.ops.reference.scan import (
    pack_scan_state,
    selective_scan_reference,
    unpack_scan_state,
)

from .cuts import cuts, random

HEADS = [
    ScanHeads(2, 16, 1, 16),
    ScanHeads(8, 64, 8, 128),
    ScanHeads(4, 80, 2, 256),
    ScanHeads(6, 17, 3, 33),
    ScanHeads(1, 1, 1, 1),
    ScanHeads(3, 32, 1, 17),
]


class Text(NamedTuple):
    """What a layer computes of some tokens, and its weights."""

    xbc: np.ndarray
    dt: np.ndarray
    rates: np.ndarray
    bias: np.ndarray
    skip: np.ndarray

    def part(self, first: int, stop: int) -> "Text":
        return Text(self.xbc[first:stop], self.dt[first:stop], *self[2:])


def _text(heads: ScanHeads, n_tokens: int, pace: float = 1.0) -> Text:
    n = heads.n_heads
    return Text(
        random(n_tokens, heads.row, size=0.5),
        random(n_tokens, n, seed=1, size=2.0),
        (-pace * np.exp(random(n, seed=3))).astype(np.float32),
        random(n, seed=4),
        random(n, seed=6),
    )


def _read(
    heads: ScanHeads, text: Text, borders: list[int], state: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(output, state) after calls for the tokens between borders."""
    state = np.zeros(heads.state_shape, np.float32) if state is None else state.copy()
    out = np.full((borders[-1], heads.n_heads, heads.head_dim), np.nan, np.float32)
    for first, stop in pairwise(borders):
        selective_scan(*text.part(first, stop), state, out[first:stop], heads)
    return out, state


@pytest.mark.parametrize("n_tokens", [1, 2, 65, 130])
@pytest.mark.parametrize("heads", HEADS)
def test_selective_scan(heads: ScanHeads, n_tokens: int) -> None:
    text = _text(heads, n_tokens)
    before = random(heads.n_heads, heads.state_size, heads.head_dim, seed=5).astype(np.float64)
    want, states = selective_scan_reference(*text[:2], text[2:], before, heads)
    state = pack_scan_state(before, heads).astype(np.float32)
    out, after = _read(heads, text, [0, n_tokens], np.ascontiguousarray(state))
    np.testing.assert_allclose(out, want, atol=3e-6 * max(1.0, np.abs(want).max()))
    limit = 2e-6 * max(1.0, np.abs(states).max())
    np.testing.assert_allclose(unpack_scan_state(after, heads), states, atol=limit)
    np.testing.assert_array_equal(pack_scan_state(unpack_scan_state(after, heads), heads), after)


def test_slow_decay_keeps_what_was_written_long_ago() -> None:
    heads = ScanHeads(2, 80, 1, 80)
    text = _text(heads, 1000, pace=1e-4)
    want, _ = selective_scan_reference(*text[:2], text[2:], np.zeros((2, 80, 80)), heads)
    out, _ = _read(heads, text, [0, 1000])
    np.testing.assert_allclose(out, want, atol=1e-5 * np.abs(want).max())


def test_steps_far_out_forget_all_or_nothing() -> None:
    heads = ScanHeads(4, 16, 1, 16)
    text = _text(heads, 3)
    text.dt[:] = [-1e4, -90, 90, 1e4]
    want, states = selective_scan_reference(*text[:2], text[2:], np.ones((4, 16, 16)), heads)
    before = pack_scan_state(np.ones((4, 16, 16)), heads).astype(np.float32)
    out, after = _read(heads, text, [0, 3], np.ascontiguousarray(before))
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())
    np.testing.assert_allclose(unpack_scan_state(after, heads), states, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads", HEADS)
def test_any_cut_gives_the_same_bits(heads: ScanHeads) -> None:
    text = _text(heads, 200)
    first, *others = (_read(heads, text, borders) for borders in cuts(200))
    for pair in others:
        for got, want in zip(pair, first, strict=True):
            np.testing.assert_array_equal(got, want)


def test_one_thread_gives_the_same_bits() -> None:
    if threads.max_threads() < 2:
        pytest.skip("one thread is all there is")
    heads, before, results = ScanHeads(6, 80, 2, 64), threads.n_threads(), []
    text = _text(heads, 150)
    for n in (1, 2):
        threads.set_threads(n)
        results.append(_read(heads, text, [0, 149, 150]))
    threads.set_threads(before)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_recorded_step_goes_on_from_its_state() -> None:
    heads = ScanHeads(4, 48, 2, 32)
    text = _text(heads, 3)
    want, after = _read(heads, text, [0, 3])
    state, now = np.zeros(heads.state_shape, np.float32), Text(*(x.copy() for x in text.part(0, 1)))
    out = np.empty((1, 4, 48), np.float32)
    graph = CPU.record(lambda: CPU.recurrent.selective_scan(*now, state, out, heads))
    for t in range(3):
        for place, x in zip(now[:2], text[:2], strict=True):
            place[:] = x[t]
        graph.run()
        np.testing.assert_array_equal(out[0], want[t])
    np.testing.assert_array_equal(state, after)


def test_refuses_in_words() -> None:
    heads = ScanHeads(4, 16, 2, 16)
    text = _text(heads, 2)
    state, out = np.zeros(heads.state_shape, np.float32), np.empty((2, 4, 16), np.float32)
    for name in Text._fields:
        wrong = text._replace(**{name: getattr(text, name)[..., :1].copy()})
        with pytest.raises(OpsError, match=f"selective scan: {name} is"):
            selective_scan(*wrong, state, out, heads)
    with pytest.raises(OpsError, match="state is"):
        selective_scan(*text, state[:2], out, heads)
    with pytest.raises(OpsError, match="out is"):
        selective_scan(*text, state, out[:1], heads)
    for sizes in ((4, 16, 3, 16), (0, 16, 2, 16), (4, 16, 2, 0)):
        with pytest.raises(OpsError, match="as many heads in each group"):
            selective_scan(*text, state, out, ScanHeads(*sizes))
