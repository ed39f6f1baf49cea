"""The gated delta rule against the recurrence in float64."""

import numpy as np
import pytest

from kvarn.ops.errors import OpsError
from kvarn.ops.recurrent import DeltaHeads
from kvarn.ops.recurrent.api import DeltaScratch
from kvarn.ops.reference.recurrent import unpack_state

from .cuts import random
from .rules import Delta

RULES = [
    Delta(1, 2, 16, 16, 0),
    Delta(2, 4, 80, 80, 0),
    Delta(2, 4, 80, 80, 1),
    Delta(2, 6, 17, 33, 1),
    Delta(1, 1, 1, 1, 0),
    Delta(2, 2, 128, 128, 0),
]


@pytest.mark.parametrize("n_tokens", [1, 2, 65, 130])
@pytest.mark.parametrize("rule", RULES)
def test_delta_rule(rule: Delta, n_tokens: int) -> None:
    heads, text = rule.heads, rule.text(n_tokens)
    state = random(*heads.state_shape, seed=5)
    state.reshape(heads.n_values, -1, heads.key_dim, 16)[
        :, -1, :, (heads.value_dim - 1) % 16 + 1 :
    ] = 0
    want, states = rule.reference(text, unpack_state(state, heads))
    out, after = rule.read(text, [0, n_tokens], state)
    np.testing.assert_allclose(out, want, atol=2e-6 * max(1.0, np.abs(want).max()))
    np.testing.assert_allclose(
        unpack_state(after, heads), states, atol=2e-6 * max(1.0, np.abs(states).max())
    )
    assert np.isfinite(after).all()


def test_gates_far_out_forget_all_or_nothing() -> None:
    rule = Delta(1, 4, 16, 16, 0)
    text = rule.text(3)
    for gate in (text["a"], text["b"]):
        gate[:] = [-1e4, -90, 90, 1e4]
    want, states = rule.reference(text, np.zeros((4, 16, 16)))
    out, after = rule.read(text, [0, 3])
    np.testing.assert_allclose(out, want, atol=1e-6)
    np.testing.assert_allclose(unpack_state(after, rule.heads), states, atol=1e-6)


@pytest.mark.parametrize("sizes", [(2, 3, 16, 16), (0, 4, 16, 16), (2, 4, 16, 0)])
def test_sizes_that_do_not_divide_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(OpsError, match="as many value heads of each key head"):
        DeltaScratch(DeltaHeads(*sizes, 0))
