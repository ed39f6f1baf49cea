"""The selective scan against the recurrence in float64."""

import numpy as np
import pytest

from kvarn.ops.errors import OpsError
from kvarn.ops.reference.scan import pack_scan_state, unpack_scan_state

from .cuts import random
from .rules import Scan

RULES = [
    Scan(2, 16, 1, 16),
    Scan(8, 64, 8, 128),
    Scan(4, 80, 2, 256),
    Scan(6, 17, 3, 33),
    Scan(1, 1, 1, 1),
    Scan(3, 32, 1, 17),
]


@pytest.mark.parametrize("n_tokens", [1, 2, 65, 130])
@pytest.mark.parametrize("rule", RULES)
def test_selective_scan(rule: Scan, n_tokens: int) -> None:
    heads, text = rule.heads, rule.text(n_tokens)
    before = random(heads.n_heads, heads.state_size, heads.head_dim, seed=5).astype(np.float64)
    want, states = rule.reference(text, before)
    state = pack_scan_state(before, heads).astype(np.float32)
    out, after = rule.read(text, [0, n_tokens], np.ascontiguousarray(state))
    np.testing.assert_allclose(out, want, atol=3e-6 * max(1.0, np.abs(want).max()))
    limit = 2e-6 * max(1.0, np.abs(states).max())
    np.testing.assert_allclose(unpack_scan_state(after, heads), states, atol=limit)
    np.testing.assert_array_equal(pack_scan_state(unpack_scan_state(after, heads), heads), after)


def test_steps_far_out_forget_all_or_nothing() -> None:
    rule = Scan(4, 16, 1, 16)
    text = rule.text(3)
    text["dt"][:] = [-1e4, -90, 90, 1e4]
    want, states = rule.reference(text, np.ones((4, 16, 16)))
    before = pack_scan_state(np.ones((4, 16, 16)), rule.heads).astype(np.float32)
    out, after = rule.read(text, [0, 3], np.ascontiguousarray(before))
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())
    np.testing.assert_allclose(unpack_scan_state(after, rule.heads), states, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(4, 16, 3, 16), (0, 16, 2, 16), (4, 16, 2, 0)])
def test_sizes_that_do_not_divide_are_refused(sizes: tuple[int, ...]) -> None:
    rule, text = Scan(*sizes), Scan(4, 16, 2, 16).text(2)
    state, out = np.zeros((4, 1, 16, 16), np.float32), np.empty((2, 4, 16), np.float32)
    with pytest.raises(OpsError, match="as many heads in each group"):
        rule.run(text, state, out)
