"""Short convolutions against float64 NumPy, and bit for bit however a text is cut."""

from itertools import pairwise

import numpy as np
import pytest

from kvarn.ops.cpu import CPU
from kvarn.ops.errors import OpsError
from kvarn.ops.recurrent.api import gated_short_conv, short_conv
from kvarn.ops.reference.recurrent import gated_short_conv_reference, short_conv_reference

from ...thread_counts import with_threads
from .cuts import cuts, random

# Tokens, channels: less than a vector, a vector and one more, more than a strip of channels.
SIZES = [(1, 5), (2, 16), (3, 17), (70, 96), (9, 1041)]


def _near(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("width", [2, 3, 4, 8])
@pytest.mark.parametrize(("n_tokens", "n"), SIZES)
def test_convolution(n_tokens: int, n: int, width: int) -> None:
    x, weight, bias = random(n_tokens, n), random(width, n, seed=1), random(n, seed=2)
    for silu in (False, True):
        for b in (None, bias):
            state, out = random(width - 1, n, seed=3), np.full_like(x, np.nan)
            want, after = short_conv_reference(x, weight, state, b, silu)
            short_conv(x, weight, state, out, bias=b, silu=silu)
            _near(out, want)
            np.testing.assert_array_equal(state, after.astype(np.float32))


@pytest.mark.parametrize("width", [3, 4])
@pytest.mark.parametrize(("n_tokens", "n"), SIZES)
def test_gated_convolution(n_tokens: int, n: int, width: int) -> None:
    bcx, weight, state = random(n_tokens, 3 * n), random(width, n), random(width - 1, n, seed=3)
    out = np.full((n_tokens, n), np.nan, np.float32)
    want, after = gated_short_conv_reference(bcx, weight, state)
    gated_short_conv(bcx, weight, state, out)
    _near(out, want)
    np.testing.assert_array_equal(state, after.astype(np.float32))


@pytest.mark.parametrize("gated", [False, True])
def test_any_cut_gives_the_same_bits(gated: bool) -> None:
    n_tokens, n, width = 200, 50, 4
    x, weight = random(n_tokens, 3 * n if gated else n), random(width, n)
    results = []
    for borders in cuts(n_tokens):
        state, out = np.zeros((width - 1, n), np.float32), np.empty((n_tokens, n), np.float32)
        for first, stop in pairwise(borders):
            if gated:
                gated_short_conv(x[first:stop], weight, state, out[first:stop])
            else:
                short_conv(x[first:stop], weight, state, out[first:stop], silu=True)
        results.append((out, state))
    for pair in results[1:]:
        for got, want in zip(pair, results[0], strict=True):
            np.testing.assert_array_equal(got, want)


def test_one_thread_gives_the_same_bits() -> None:
    x, weight, results = random(90, 1000), random(4, 1000), []
    for _ in with_threads(1, 2):
        state, out = np.zeros((3, 1000), np.float32), np.empty_like(x)
        short_conv(x, weight, state, out, silu=True)
        results.append((out, state))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_recorded_step_runs_again_on_its_state() -> None:
    x, weight = random(2, 40), random(3, 40)
    state, out, results = np.zeros((2, 40), np.float32), np.empty((1, 40), np.float32), []
    row = x[:1].copy()
    graph = CPU.record(lambda: CPU.recurrent.short_conv(row, weight, state, out))
    for t in range(2):
        row[:] = x[t]
        graph.run()
        results.append(out.copy())
    want, _ = short_conv_reference(x, weight, np.zeros((2, 40)))
    _near(np.concatenate(results), want)


def test_refuses_in_words() -> None:
    x, weight, state = random(4, 48), random(3, 48), random(2, 48)
    for words, call in {
        "expected 2 to 8 rows": lambda: short_conv(x, weight[:1], state, x.copy()),
        "state is float32": lambda: short_conv(x, weight, state[:1], x.copy()),
        r"x is float32 .* \(4, 144\)": lambda: gated_short_conv(x, weight, state, x.copy()),
        "out is": lambda: short_conv(x, weight, state, x[:2].copy()),
        "bias is": lambda: short_conv(x, weight, state, x.copy(), bias=x[0, :3]),
    }.items():
        with pytest.raises(OpsError, match=words):
            call()
