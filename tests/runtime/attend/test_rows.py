"""Rows of drafts choose one by one; those of prompts and of dense layers read everything."""

from dataclasses import replace

import numpy as np
import pytest

from kvarn.runtime.attend import AttendError, Full
from kvarn.runtime.attend.sparse import Sparse
from kvarn.runtime.model import Model

from ..reading import ids_of
from .test_sparse import METHODS, N, name_of, read


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_rows_of_a_draft_choose_as_they_would_alone(model: Model, method: Sparse) -> None:
    alone, want = read(model, method, steps=4)
    ids = ids_of(model, N + 4)
    together = model.context(N + 4, method)
    together.prefill(ids[:N])
    ids = ids[N:]
    got = [together.decode(ids[0], ids[1:]).copy(), *(together.decode(i).copy() for i in ids[1:])]
    np.testing.assert_array_equal(got, want)
    for mine, theirs in zip(together.stats.layers, alone.stats.layers, strict=True):
        assert (mine.steps, mine.attended_tokens) == (theirs.steps, theirs.attended_tokens)


def test_the_last_token_of_a_prompt_is_read_like_the_others(model: Model) -> None:
    ids = ids_of(model, 513)
    exact = model.context(600, Full()).prefill(ids).copy()
    context = model.context(600, METHODS[0])
    np.testing.assert_array_equal(context.prefill(ids), exact)
    assert not any(layer.steps for layer in context.stats.layers)


def test_dense_layers_read_everything(model: Model) -> None:
    last = model.config.n_layers - 1
    context, _ = read(model, replace(METHODS[0], dense_layers=f"0,{last}"))
    counted = [(layer.steps, layer.full_steps) for layer in context.stats.layers]
    assert counted[0] == counted[last] == (0, 4)
    assert (4, 0) in counted[1:-1] or model.config.n_layers == 2
    with pytest.raises(AttendError, match=f"dense layer 99 does not exist: .* 0 to {last}"):
        model.context(600, replace(METHODS[0], dense_layers="99"))
    with pytest.raises(AttendError, match="expected numbers such as 0,16"):
        replace(METHODS[0], dense_layers="first")


def test_the_output_error_is_none_where_all_that_matters_is_read(model: Model) -> None:
    few, _ = read(model, replace(METHODS[0], probe=1, budget=2))
    most, _ = read(model, replace(METHODS[0], probe=1, budget=500))
    errors = [
        [layer["output_error"] for layer in context.stats.as_dict()["layers"] if layer["probes"]]
        for context in (few, most)
    ]
    assert errors[0] and all(0 <= small < large for large, small in zip(*errors, strict=True))
