"""Models whose layers have windows or carry states: what is read again is read as it was."""

from __future__ import annotations

import numpy as np
import pytest

import kvarn
from kvarn.runtime.model import Model

from ....models import tiny_cases, tiny_models
from ...reading import ids_of
from .conftest import Make
from .test_library import N_CTX, PLAIN, anew, answer, read


@pytest.fixture(scope="module", params=["qwen35", "lfm2", "gemma3"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    (case,) = (case for case in tiny_cases.CASES if case.name == request.param)
    path = tmp_path_factory.mktemp("kind") / "model.gguf"
    tiny_models.write(path, case, 1)
    return kvarn.load(path)


@pytest.mark.parametrize("n", [500, 1024, 1700, 2300])
def test_branches(make: Make, kind: Model, n: int) -> None:
    library, first = make(of=kind), ids_of(kind, 2300)
    library.release(read(library, first))
    ids = [*first[:n], (first[n - 1] + 1) % 200, *ids_of(kind, 300, seed=1)]
    lease = read(library, ids)
    assert lease.cached <= n
    assert n < 2300 or lease.cached == n
    np.testing.assert_array_equal(lease.context.logits, anew(kind, ids))
    library.release(lease)


@pytest.mark.parametrize("n_said", [30, 1200])
@pytest.mark.parametrize("n", [1300, 2048])
def test_the_same_prompt_after_its_answer(make: Make, kind: Model, n: int, n_said: int) -> None:
    """The end of a prompt is a place to which one comes back, whatever followed."""
    library, ids = make(of=kind), ids_of(kind, n)
    first = read(library, ids)
    for token in ids_of(kind, n_said, seed=3):
        first.context.decode(token)
    other = [*ids, 5, 6]
    second = read(library, other)
    assert second.cached == n
    np.testing.assert_array_equal(second.context.logits, anew(kind, other))
    library.release(first)
    library.release(second)
    third = read(make(of=kind), other[:-1])
    assert third.cached == n
    np.testing.assert_array_equal(third.context.logits, anew(kind, other[:-1]))


def test_the_next_turn(make: Make, kind: Model) -> None:
    library, ids = make(of=kind), ids_of(kind, 1300)
    first = read(library, ids)
    said = answer(first, 20)
    held = len(first.context.tokens)
    library.release(first)
    library = make(of=kind)
    turn = [*ids, *said, *ids_of(kind, 40, seed=2)]
    second = read(library, turn)
    assert second.cached == held
    with kind.context(N_CTX) as context:
        context.prefill(ids)
        for token in said[:-1]:
            context.decode(token)
        context.prefill(turn[len(context.tokens) :])
        np.testing.assert_array_equal(second.context.logits, context.logits)


def test_what_is_being_read(make: Make, kind: Model) -> None:
    library, ids = make(of=kind), ids_of(kind, 1800)
    first = library.open(ids, PLAIN, N_CTX)
    first.context.prefill(ids[:1500])
    other = [*ids[:1500], *ids_of(kind, 50, seed=1)]
    second = read(library, other)
    assert second.cached == 1500
    first.context.prefill(ids[1500:])
    np.testing.assert_array_equal(first.context.logits, anew(kind, ids))
    np.testing.assert_array_equal(second.context.logits, anew(kind, other))
