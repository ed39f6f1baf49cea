"""The tokens of an answer before its stop string. The oracle: their text."""

from __future__ import annotations

import pytest

from kvarn.runtime.context.generation import before_stop
from kvarn.runtime.model import Model

SAID = "The mill stood by the river, and the miller slept. Größe: 3 € 😀. User: And then?"


@pytest.mark.parametrize("stop", [SAID[i : i + n] for i in range(1, 70) for n in (1, 6)])
def test_they_have_the_text_before_it(tiny: Model, stop: str) -> None:
    tokenizer = tiny.tokenizer
    ids = tokenizer.encode(SAID)
    text, at = tokenizer.decode(ids), SAID.index(stop)
    assert text == SAID
    kept = before_stop(tokenizer, ids, [stop])
    assert tokenizer.decode(kept) == SAID[:at]
    n_whole = max(k for k in range(len(ids)) if _begins(tokenizer.decode(ids[:k]), SAID[:at]))
    assert len(kept) - n_whole < 12
    assert kept[:n_whole] == ids[:n_whole]


def _begins(part: str, whole: str) -> bool:
    return "\ufffd" not in part and whole.startswith(part)


def test_all_of_them_where_there_is_none(tiny: Model) -> None:
    ids = tiny.tokenizer.encode(SAID)
    assert before_stop(tiny.tokenizer, ids, ["nowhere"]) == ids
    assert before_stop(tiny.tokenizer, [], ["x"]) == []
    assert before_stop(tiny.tokenizer, ids, [SAID[:4]]) == []
