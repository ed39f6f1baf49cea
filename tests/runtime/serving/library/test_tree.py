"""The tree against a list of all sequences."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvarn.runtime.serving.library.tree import TokenTree, n_equal

Tokens = list[int]
few = st.lists(st.integers(0, 2), max_size=8)


def array(tokens: Tokens) -> np.ndarray:
    return np.asarray(tokens, np.uint32)


def common(a: Tokens, b: Tokens) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | few)), few)
def test_any_history(steps: list[tuple[int, Tokens | None]], wanted: Tokens) -> None:
    tree: TokenTree[int] = TokenTree()
    held: dict[int, Tokens] = {}
    for entry, tokens in steps:
        if tokens is None:
            tree.remove(entry)
            held.pop(entry, None)
        else:
            tree.insert(array(tokens), entry)
            held[entry] = tokens
        assert {e: tree.tokens_of(e).tolist() for e in held} == held
        assert len(tree) == len(held)
        match = tree.longest(array(wanted))
        n = max((common(wanted, other) for other in held.values()), default=0)
        assert match.n_tokens == n
        assert sorted(match.ending) == sorted(e for e in held if held[e] == wanted[:n])
        assert sorted(match.entries()) == sorted(e for e in held if held[e][:n] == wanted[:n])


@given(few, few)
def test_n_equal(a: Tokens, b: Tokens) -> None:
    assert n_equal(array(a), array(b)) == common(a, b)
