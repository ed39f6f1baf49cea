"""Answers as messages: OpenAI's forms of calls, arguments and log probabilities."""

import json
import math
from typing import Any

import pytest

from kvarn.runtime.chat.replies import Choice, Logprob, PartialAnswer, arguments_of
from kvarn.runtime.chat.tool_calls import CallArguments, CallBegins, TextPiece


def gathered(*events: object) -> PartialAnswer:
    answer = PartialAnswer()
    for event in events:
        answer.add(event)
    return answer


def test_an_answer_of_calls_alone_has_no_content_and_calls_have_objects() -> None:
    answer = gathered(CallBegins(0, "x", "look"), CallBegins(1, "y", "sum"))
    answer.add(CallArguments(1, '{"a": '))
    answer.add(CallArguments(1, "1}"))
    reply, message = answer.reply(), answer.message()
    assert reply["content"] is None and message["content"] == ""
    texts, objects = (
        [call["function"]["arguments"] for call in form["tool_calls"]] for form in (reply, message)
    )
    assert texts == ["{}", '{"a": 1}'] and objects == [{}, {"a": 1}]
    answer.add(TextPiece("Well."))
    assert answer.reply()["content"] == answer.message()["content"] == "Well."
    assert gathered().reply() == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": ', "[1]", "1", "[" * 100_000])
def test_arguments_that_are_no_object_of_json_stay_a_text(text: str) -> None:
    assert arguments_of(text) == {"arguments": text}


TOKENS = [
    Logprob(5, b"ab", -0.5, [(5, b"ab", -0.5), (7, b"\xff", -1.0), (8, b"c", -2.0)]),
    Logprob(8, b"c", -math.inf, [(5, b"ab", -0.25)]),
]


def test_log_probabilities_of_a_chat_are_json_with_as_many_others_as_asked_for() -> None:
    choice = Choice(True, 2, waiting=list(TOKENS)).chunk({})
    first, second = json.loads(json.dumps(choice["logprobs"]["content"], allow_nan=False))
    assert (first["token"], first["logprob"], first["bytes"]) == ("ab", -0.5, [97, 98])
    assert [(one["token"], one["bytes"]) for one in first["top_logprobs"]] == [
        ("ab", [97, 98]),
        ("\ufffd", [255]),
    ]
    assert second["logprob"] < -1e9


def test_the_older_form_counts_characters_from_what_was_told_before() -> None:
    choice = Choice(False, 1, n_told=10)

    def lists(*tokens: Logprob) -> dict[str, Any]:
        choice.waiting += tokens
        told: dict[str, Any] = choice.chunk({})["logprobs"]
        return told

    form = lists(*TOKENS)
    assert (form["tokens"], form["text_offset"]) == (["ab", "c"], [10, 12])
    assert form["top_logprobs"] == [{"ab": -0.5}, {"ab": -0.25}]
    json.dumps(form, allow_nan=False)
    offsets = [lists(*tokens)["text_offset"] for tokens in ([], TOKENS[1:], TOKENS)]
    assert offsets == [[], [13], [14, 16]]


def test_a_choice_without_log_probabilities_has_none() -> None:
    chat = Choice(True, 1)
    assert chat.chunk({})["logprobs"] is None
    assert chat.whole({}, "stop")["logprobs"] == {"content": []}
    for is_chat in (True, False):
        assert Choice(is_chat, None, waiting=list(TOKENS)).whole({}, "stop")["logprobs"] is None
