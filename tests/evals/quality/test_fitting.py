"""Contexts of a length in tokens."""

import random

import pytest

from kvarn.evals.quality import EvalError
from kvarn.evals.quality.reading import fit
from kvarn.evals.tasks import ALL_TASKS, Plain, Sample
from kvarn.runtime.model import Model


@pytest.mark.parametrize("length", [4000, 6000])
@pytest.mark.parametrize("task", ["needle", "kv", "cwe", "fwe", "homes"])
def test_contexts_fill_their_length_and_never_exceed_it(
    tiny: Model, task: str, length: int
) -> None:
    def n_tokens(text: str) -> int:
        return len(tiny.tokenizer.encode(text))

    def make(n_chars: int) -> Sample:
        return ALL_TASKS[task](random.Random(1), n_chars, 4, Plain())

    found = n_tokens(fit(make, n_tokens, length, task).context)
    assert 0.97 * length <= found <= length


@pytest.mark.parametrize("chars_per_token", [1, 3, 9])
def test_whatever_a_token_holds(chars_per_token: int) -> None:
    def make(n_chars: int) -> Sample:
        return ALL_TASKS["needle"](random.Random(1), n_chars, 4, Plain())

    sample = fit(make, lambda text: -(-len(text) // chars_per_token), 3000, "needle")
    assert 2940 <= len(sample.context) / chars_per_token <= 3000


def test_what_does_not_fit_is_said() -> None:
    def make(n_chars: int) -> Sample:
        return ALL_TASKS["cwe"](random.Random(1), n_chars, 4, Plain())

    with pytest.raises(EvalError, match="task cwe does not fit in 20 tokens: use a larger"):
        fit(make, len, 20, "task cwe")
