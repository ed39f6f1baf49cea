"""Marks: a context that returns to one goes on as the first time, bit for bit."""

from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Attend
from kvarn.runtime.context import Context, ContextError
from kvarn.runtime.keep import Keep
from kvarn.runtime.model import Model

from ..reading import ids_of

BUDGET = 130
KEEPS = [
    kvarn.KeepAll(),
    kvarn.Streaming(BUDGET),
    kvarn.HashEvict(BUDGET),
    kvarn.NaCl(BUDGET),
    kvarn.NaCl(BUDGET, every=70),
    kvarn.H2O(BUDGET),
    kvarn.H2O(BUDGET, every=70),
    kvarn.SnapKV(BUDGET),
    kvarn.L2Norm(BUDGET),
]


def go_on(context: Context, prompt: list[int], generated: list[int]) -> list[np.ndarray]:
    """Logits and what is kept, after a prompt and after each of some generated tokens."""
    found = [context.prefill(prompt).copy()] if prompt else []
    for token in generated:
        found.append(context.decode(token).copy())
    return [*found, *(np.sort(context.kept_positions(layer)) for layer in range(2))]


@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize(
    "attend", [kvarn.Full(), kvarn.Hash(budget=20, sink=4, window=16)], ids=str
)
def test_what_follows_a_mark_is_the_same_each_time(tiny: Model, keep: Keep, attend: Attend) -> None:
    """Marks within a prompt, after an eviction, and of an empty context; each is used twice, also
    after the context has grown, shrunk and forgotten."""
    ids = ids_of(tiny, 2000)
    context = tiny.context(2000, attend, keep)
    empty = context.mark()
    context.prefill(ids[:600])
    within, logits = context.mark(), context.logits.copy()
    first = go_on(context, ids[600:650], ids[650:660])
    evicted = context.mark()
    second = go_on(context, ids[660:1500], ids[1500:1505])
    for _ in range(2):
        if not keep.keeps_all:  # it was cut, and holds other tokens by now
            context.return_to(evicted)
            for want, got in zip(second, go_on(context, ids[660:1500], ids[1500:1505])):
                np.testing.assert_array_equal(got, want)
        context.return_to(within)
        assert context.tokens == ids[:600]
        np.testing.assert_array_equal(context.logits, logits)
        for want, got in zip(first, go_on(context, ids[600:650], ids[650:660])):
            np.testing.assert_array_equal(got, want)
    context.return_to(empty)
    assert not context.tokens
    context.prefill(ids[:600])
    np.testing.assert_array_equal(context.logits, logits)


def test_a_context_returns_to_its_own_marks(tiny: Model) -> None:
    ids = ids_of(tiny, 300)
    one, other = (tiny.context(400, keep=keep) for keep in (kvarn.Streaming(40), None))
    for context in (one, other):
        context.prefill(ids)
    with pytest.raises(ContextError, match="a context returns to its own"):
        one.return_to(other.mark())
    mark = other.mark()
    other.truncate(200)
    other.prefill([7])
    with pytest.raises(ContextError, match="cannot return to 300 tokens"):
        other.return_to(mark)
    assert other.tokens == [*ids[:200], 7]


def test_a_return_is_saved(tiny: Model, tmp_path: Path) -> None:
    """On disk, the next snapshot is of what the context holds after it has returned."""
    ids, keep = ids_of(tiny, 700), kvarn.NaCl(BUDGET)
    with tiny.context(1000, keep=keep, store=kvarn.Disk(tmp_path / "pack")) as context:
        context.prefill(ids[:600])
        mark = context.mark()
        want = go_on(context, ids[600:620], ids[620:625])
        context.return_to(mark)
    with tiny.context(1000, keep=keep, store=kvarn.Disk(tmp_path / "pack")) as context:
        assert context.tokens == ids[:600]
        for one, other in zip(go_on(context, ids[600:620], ids[620:625]), want, strict=True):
            np.testing.assert_array_equal(one, other)
