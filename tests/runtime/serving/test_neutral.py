"""What stands in the place of a question, and where passages are: tokens are bytes here."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.lens.passages import Lens
from kvarn.runtime.lens.quotes import quotes_of
from kvarn.runtime.lens.weights import NEUTRAL, NEUTRAL_ANSWER
from kvarn.runtime.serving.lens import lens_steps, neutral_ids
from kvarn.runtime.serving.protocol import Chat, Prompt, Text
from kvarn.system.errors import KvarnError

BYTES: Any = SimpleNamespace(
    encode=lambda text: list(text.encode()),
    decode=lambda ids: bytes(ids).decode(),
    piece=lambda id: bytes([id]),
)


def rendered(prompt: Prompt) -> list[int]:
    if isinstance(prompt, Chat):
        return BYTES.encode(json.dumps([prompt.messages, prompt.tools, prompt.extra]))
    return BYTES.encode(prompt.text)


def neutral(prompt: Prompt, alone: bool = True) -> str:
    """The text of `neutral_ids`, without the answer."""
    ids = neutral_ids(BYTES, prompt, rendered(prompt), rendered, alone)
    return BYTES.decode(ids).removesuffix(NEUTRAL_ANSWER)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("end", ["", "\n", " \n\n"])
def test_the_last_line_of_a_message_is_replaced(end: str) -> None:
    assert neutral(Chat([user(f"A mill.\nWho?{end}")])) == json.dumps(
        [[user(f"A mill.\n{NEUTRAL}")], None, {}]
    )


def test_after_a_pack_all_of_the_message_is_replaced_and_the_rest_stays() -> None:
    tools, extra = [{"type": "function"}], {"enable_thinking": False}
    chat = Chat([user("Hello"), user("A mill.\nWho?")], tools, extra)
    assert neutral(chat, False) == json.dumps([[user("Hello"), user(NEUTRAL)], tools, extra])


def test_an_answer_that_is_gone_on_with_is_no_question() -> None:
    begun = {"role": "assistant", "content": "The"}
    chat = Chat([user("Hello"), user("Who?"), begun], continues=True)
    assert neutral(chat) == json.dumps([[user("Hello"), user(NEUTRAL)], None, {}])


@pytest.mark.parametrize(
    ("text", "alone", "stays"),
    [
        ("A mill.\nWho?", True, "A mill.\n"),
        ("A mill.\nWho?\n", True, "A mill.\n"),
        ("A mill.\n" + 31 * "w", True, "A mill.\n"),
        ("A mill.\n" + 40 * "w", True, "A mill.\n" + 8 * "w"),
        ("Who?", True, ""),
        ("A mill.\nWho?", False, ""),
    ],
)
def test_the_last_line_of_a_text_is_replaced(text: str, alone: bool, stays: str) -> None:
    """Or the last 32 tokens of it."""
    assert neutral(Text(text), alone) == f"{stays}{NEUTRAL} "


def test_an_error_while_it_is_weighed_is_told_in_the_lens() -> None:
    def refuse(request: ContextRequest) -> Any:
        raise KvarnError("no room\nfor it")

    document = BYTES.encode("The mill stood.")
    steps = lens_steps(refuse, ContextRequest(), [*document, 1], [*document, 2], 0, BYTES)
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(64)
    assert end.value.value == Lens(note="nothing could be weighed: no room for it")


@pytest.mark.parametrize(
    ("peak", "place"), [(99, "line 10"), (100, "prompt, line 1"), (115, "prompt, line 2")]
)
def test_a_passage_is_where_its_middle_is(peak: int, place: str) -> None:
    weights = np.zeros(200)
    weights[peak] = 1
    [passage] = quotes_of(BYTES, BYTES.encode("The mill.\n" * 20), weights, 100)
    assert passage.place == place
