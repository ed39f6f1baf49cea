"""What an answer is worth: RULER's rule, and room for a reply."""

import pytest

from kvarn.evals.quality.asking import score
from kvarn.evals.quality.reading import most_tokens
from kvarn.evals.tasks import Question
from kvarn.runtime.model import Model


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
