"""The gated delta rule against the recurrence in float64, and bit for bit however a text is cut."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.ops.cpu import CPU
from kvarn.ops.errors import OpsError
from kvarn.ops.recurrent import DeltaHeads
from kvarn.ops.recurrent.api import DeltaScratch, gated_delta_rule
from kvarn.ops.reference.recurrent import delta_rule_reference, unpack_state

from .cuts import cuts, random

HEADS = [
    DeltaHeads(1, 2, 16, 16, 0),
    DeltaHeads(2, 4, 80, 80, 0),
    DeltaHeads(2, 4, 80, 80, 1),
    DeltaHeads(2, 6, 17, 33, 1),
    DeltaHeads(1, 1, 1, 1, 0),
    DeltaHeads(2, 2, 128, 128, 0),
]


class Text(NamedTuple):
    """What a layer computes of some tokens, and its weights."""

    qkv: np.ndarray
    b: np.ndarray
    a: np.ndarray
    rates: np.ndarray
    bias: np.ndarray

    def part(self, first: int, stop: int) -> "Text":
        tokens = (x[first:stop] for x in self[:3])
        return Text(*tokens, *self[3:])


def _text(heads: DeltaHeads, n_tokens: int, pace: float = 1.0) -> Text:
    n = heads.n_values
    rates = -pace * np.exp(random(n, seed=3))
    return Text(
        random(n_tokens, heads.row, size=0.5),
        random(n_tokens, n, seed=1, size=2.0),
        random(n_tokens, n, seed=2, size=2.0),
        rates.astype(np.float32),
        random(n, seed=4),
    )


def _read(
    heads: DeltaHeads, text: Text, borders: list[int], state: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(output, state) after calls for the tokens between borders."""
    scratch = DeltaScratch(heads)
    state = np.zeros(heads.state_shape, np.float32) if state is None else state.copy()
    out = np.full((borders[-1], heads.n_values, heads.value_dim), np.nan, np.float32)
    for first, stop in pairwise(borders):
        gated_delta_rule(*text.part(first, stop), state, out[first:stop], scratch)
    return out, state


@pytest.mark.parametrize("n_tokens", [1, 2, 65, 130])
@pytest.mark.parametrize("heads", HEADS)
def test_delta_rule(heads: DeltaHeads, n_tokens: int) -> None:
    text, state = _text(heads, n_tokens), random(*heads.state_shape, seed=5)
    state.reshape(heads.n_values, -1, heads.key_dim, 16)[
        :, -1, :, (heads.value_dim - 1) % 16 + 1 :
    ] = 0
    before = unpack_state(state, heads)
    want, states = delta_rule_reference(*text[:3], text[3:], before, heads)
    out, after = _read(heads, text, [0, n_tokens], state)
    np.testing.assert_allclose(out, want, atol=2e-6 * max(1.0, np.abs(want).max()))
    np.testing.assert_allclose(
        unpack_state(after, heads), states, atol=2e-6 * max(1.0, np.abs(states).max())
    )
    assert np.isfinite(after).all()


def test_slow_decay_keeps_what_was_written_long_ago() -> None:
    heads = DeltaHeads(1, 2, 80, 80, 0)
    text = _text(heads, 1000, pace=1e-4)
    want, _ = delta_rule_reference(*text[:3], text[3:], np.zeros((2, 80, 80)), heads)
    out, _ = _read(heads, text, [0, 1000])
    np.testing.assert_allclose(out, want, atol=1e-5 * np.abs(want).max())


def test_gates_far_out_forget_all_or_nothing() -> None:
    heads = DeltaHeads(1, 4, 16, 16, 0)
    text = _text(heads, 3)
    for gate in (text.a, text.b):
        gate[:] = [-1e4, -90, 90, 1e4]
    want, states = delta_rule_reference(*text[:3], text[3:], np.zeros((4, 16, 16)), heads)
    out, after = _read(heads, text, [0, 3])
    np.testing.assert_allclose(out, want, atol=1e-6)
    np.testing.assert_allclose(unpack_state(after, heads), states, atol=1e-6)


@pytest.mark.parametrize("heads", HEADS[:4])
def test_any_cut_gives_the_same_bits(heads: DeltaHeads) -> None:
    text = _text(heads, 200)
    first, *others = (_read(heads, text, borders) for borders in cuts(200))
    for pair in others:
        for got, want in zip(pair, first, strict=True):
            np.testing.assert_array_equal(got, want)


def test_one_thread_gives_the_same_bits() -> None:
    if threads.max_threads() < 2:
        pytest.skip("one thread is all there is")
    heads, before, results = DeltaHeads(2, 6, 80, 80, 1), threads.n_threads(), []
    text = _text(heads, 150)
    for n in (1, 2):
        threads.set_threads(n)
        results.append(_read(heads, text, [0, 149, 150]))
    threads.set_threads(before)
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_recorded_step_goes_on_from_its_state() -> None:
    heads = DeltaHeads(2, 4, 32, 48, 0)
    text, scratch = _text(heads, 3), DeltaScratch(heads)
    want, after = _read(heads, text, [0, 3])
    state, now = np.zeros(heads.state_shape, np.float32), Text(*(x.copy() for x in text.part(0, 1)))
    out = np.empty((1, 4, 48), np.float32)
    graph = CPU.record(lambda: CPU.recurrent.gated_delta_rule(*now, state, out, scratch))
    for t in range(3):
        for place, x in zip(now[:3], text[:3], strict=True):
            place[:] = x[t]
        graph.run()
        np.testing.assert_array_equal(out[0], want[t])
    np.testing.assert_array_equal(state, after)


def test_refuses_in_words() -> None:
    heads = DeltaHeads(2, 4, 16, 16, 0)
    text, scratch = _text(heads, 2), DeltaScratch(heads)
    state, out = np.zeros(heads.state_shape, np.float32), np.empty((2, 4, 16), np.float32)
    for name in ("qkv", "b", "a", "rates", "bias"):
        wrong = text._replace(**{name: getattr(text, name)[..., :1].copy()})
        with pytest.raises(OpsError, match=f"delta rule: {name} is"):
            gated_delta_rule(*wrong, state, out, scratch)
    with pytest.raises(OpsError, match="state is"):
        gated_delta_rule(*text, state[:2], out, scratch)
    with pytest.raises(OpsError, match="out is"):
        gated_delta_rule(*text, state, out[:1], scratch)
    for sizes in ((2, 3, 16, 16), (0, 4, 16, 16), (2, 4, 16, 0)):
        with pytest.raises(OpsError, match="as many value heads of each key head"):
            DeltaScratch(DeltaHeads(*sizes, 0))
