"""What holds for each rule by which a layer changes a state: the same bits however it is cut."""

import numpy as np
import pytest

from kvarn.ops.cpu import CPU
from kvarn.ops.errors import OpsError

from ...thread_counts import with_threads
from .cuts import cuts
from .rules import Delta, Results, Rule, Scan


def _same_bits(first: Results, *others: Results) -> None:
    for pair in others:
        for got, want in zip(pair, first, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rule", [Delta(1, 2, 80, 80, 0), Scan(2, 80, 1, 80)])
def test_slow_decay_keeps_what_was_written_long_ago(rule: Rule) -> None:
    text = rule.text(1000, pace=1e-4)
    want, _ = rule.reference(text, np.zeros((2, 80, 80)))
    out, _ = rule.read(text, [0, 1000])
    np.testing.assert_allclose(out, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    "rule",
    [
        Delta(1, 2, 16, 16, 0),
        Delta(2, 4, 80, 80, 0),
        Delta(2, 4, 80, 80, 1),
        Delta(2, 6, 17, 33, 1),
        Scan(2, 16, 1, 16),
        Scan(8, 64, 8, 128),
        Scan(4, 80, 2, 256),
        Scan(6, 17, 3, 33),
        Scan(1, 1, 1, 1),
        Scan(3, 32, 1, 17),
    ],
)
def test_any_cut_gives_the_same_bits(rule: Rule) -> None:
    text = rule.text(200)
    _same_bits(*(rule.read(text, borders) for borders in cuts(200)))


@pytest.mark.parametrize("rule", [Delta(2, 6, 80, 80, 1), Scan(6, 80, 2, 64)])
def test_one_thread_gives_the_same_bits(rule: Rule) -> None:
    results = []
    text = rule.text(150)
    for _ in with_threads(1, 2):
        results.append(rule.read(text, [0, 149, 150]))
    _same_bits(*results)


@pytest.mark.parametrize("rule", [Delta(2, 4, 32, 48, 0), Scan(4, 48, 2, 32)])
def test_a_recorded_step_goes_on_from_its_state(rule: Rule) -> None:
    text = rule.text(3)
    want, after = rule.read(text, [0, 3])
    state = np.zeros(rule.heads.state_shape, np.float32)
    now = {name: x.copy() for name, x in rule.part(text, 0, 1).items()}
    out = np.empty((1, *rule.out_shape), np.float32)
    graph = CPU.record(lambda: rule.run(now, state, out))
    for t in range(3):
        for name in rule.of_tokens:
            now[name][:] = text[name][t]
        graph.run()
        np.testing.assert_array_equal(out[0], want[t])
    np.testing.assert_array_equal(state, after)


@pytest.mark.parametrize("rule", [Delta(2, 4, 16, 16, 0), Scan(4, 16, 2, 16)])
def test_refuses_in_words(rule: Rule) -> None:
    text = rule.text(2)
    state, out = np.zeros(rule.heads.state_shape, np.float32), np.empty((2, 4, 16), np.float32)
    for name, x in text.items():
        with pytest.raises(OpsError, match=f"{rule.name}: {name} is"):
            rule.run(text | {name: x[..., :1].copy()}, state, out)
    with pytest.raises(OpsError, match="state is"):
        rule.run(text, state[:2], out)
    with pytest.raises(OpsError, match="out is"):
        rule.run(text, state, out[:1])
