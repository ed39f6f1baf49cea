"""The measure of constrained answers' masks: each token of each case is timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.sampling import Constraint
from kvarn.runtime.sampling.constraints.matcher import Matcher
from kvarn.runtime.tokenizer import load_tokenizer
from lab.masks import CASES, FREE, main, mask_seconds, table


def test_the_table_has_a_row_for_each_case() -> None:
    rows = table(load_tokenizer(default_model_path()), 5).splitlines()[4:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(CASES)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "found 0 words, expected the file of a model: python -m lab.masks MODEL.gguf"),
        (["a", "b"], "found 2 words, expected the file of a model"),
        (["gone.gguf"], "gone.gguf"),
    ],
)
def test_what_names_no_model_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 1
    said = capsys.readouterr()
    assert line in said.err and said.err.count("\n") == 1 and not said.out


@pytest.mark.parametrize("name", CASES)
def test_as_many_masks_are_timed_as_are_asked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the match after a trigger, too: it comes after some free text."""
    masks: list[int] = []
    awaits: list[bool] = []
    compute = Matcher.allowed

    def allowed(self: Matcher, logits: object) -> object:
        result = compute(self, logits)  # type: ignore[arg-type]
        masks.append(len(result.ids))
        awaits.append(self._trigger.key is not None)
        return result

    monkeypatch.setattr(Matcher, "allowed", allowed)
    seconds = mask_seconds(load_tokenizer(default_model_path()), CASES[name], 2 * FREE)
    assert seconds.shape == (2 * FREE,)
    assert len(masks) >= 2 * FREE and len(set(masks)) > 1
    has_trigger = bool(CASES[name].trigger)
    assert any(awaits) == has_trigger and not all(awaits)


def test_a_vocabulary_of_bytes_is_measured(tiny_path: Path) -> None:
    """Its free text breaks off within characters, where no trigger may begin."""
    tokenizer = load_tokenizer(tiny_path)
    for constraint in CASES.values():
        assert len(mask_seconds(tokenizer, constraint, 5 * FREE)) == 5 * FREE


def test_answers_that_end_are_followed_by_others() -> None:
    yes = Constraint("regex", "yes")
    assert len(mask_seconds(load_tokenizer(default_model_path()), yes, 20)) == 20
