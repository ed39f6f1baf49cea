"""Contexts of a length in tokens, room for replies, and the scores of answers."""

import random

import pytest

from kvarn.evals.quality import EvalError
from kvarn.evals.quality.asking import score
from kvarn.evals.quality.reading import fit, most_tokens
from kvarn.evals.tasks import ALL_TASKS, Plain, Question, Sample
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

    size = n_tokens(fit(make, n_tokens, length, task).context)
    assert 0.97 * length <= size <= length


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


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        (" It is 48403.", ("48403",), 1.0),
        (" It is 4840.", ("48403",), 0.0),
        (" 1, 22 and 3", ("1", "22", "44", "3"), 0.75),
        (" the OLD Bed", ("old bed",), 1.0),
        ("", ("x", "y"), 0.0),
    ],
)
def test_every_answer_that_occurs_counts(
    text: str, answers: tuple[str, ...], expected: float
) -> None:
    assert score(text, answers) == expected


def test_there_is_room_for_the_reply_and_half_of_it(tiny: Model) -> None:
    reply = " Edith Hale, who lives in Langbury."
    n = len(tiny.tokenizer.encode(reply, bos=False))
    assert most_tokens(tiny.tokenizer, Question("?", reply, ("Langbury",))) == n + n // 2 + 8
