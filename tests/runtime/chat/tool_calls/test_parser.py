"""Parsers of answers: what each format says, however its text comes in pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvarn.runtime.chat.tool_calls import CallArguments, CallBegins

from ....programs import printed
from .cases import CASES, HARMONY, HERMES, JSON_NOW, JSON_OSLO, THINKS, TOOLS, parser, said


@pytest.mark.parametrize("name", CASES)
def test_an_answer_says_what_its_format_means(name: str) -> None:
    template, answer, text, reasoning, calls = CASES[name]
    result = said(template, answer)
    assert (result.text, result.reasoning, result.values) == (text, reasoning, calls)
    assert result.ended == list(range(len(calls)))


@pytest.mark.parametrize("name", CASES)
def test_pieces_of_one_character_say_the_same(name: str) -> None:
    template, answer = CASES[name][:2]
    assert said(template, answer) == said(template, list(answer))


MARKERS = [
    "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=city>", "</parameter>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>", "[TOOL_CALLS]",
    "[ARGS]", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "to=functions.now",
    "<think>", "</think>", "<|tool_call>", "<tool_call|>", "call:now{", '<|"|>', "analysis",
    "final", "\n", " ", "{", "}", '"', "now", ":", ",", "[", "]", "\\", "\\u00e9", JSON_OSLO,
    JSON_NOW, ">",
    '{"name": "now", "arguments": ', "12", "é", "<channel|>",
]  # fmt: skip


@settings(max_examples=300)
@given(
    st.sampled_from(sorted({case[0] for case in CASES.values()})),
    st.lists(st.sampled_from(MARKERS) | st.text(max_size=4), max_size=14),
    st.lists(st.integers(0, 200), max_size=8),
    st.booleans(),
)
def test_any_text_says_the_same_in_any_pieces(
    template: str, parts: list[str], cuts: list[int], opened: bool
) -> None:
    text, end = "".join(parts), "<think>\n" if opened else ""
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert said(template, pieces, TOOLS, end) == said(template, text, TOOLS, end)


@settings(max_examples=100)
@given(st.sampled_from(sorted({case[0] for case in CASES.values()})), st.text())
def test_text_without_calls_is_kept(template: str, text: str) -> None:
    if not any(character in text for character in "<[{"):
        assert said(template, text).text == text


def test_events_come_as_soon_as_they_can() -> None:
    reads = parser(HERMES)
    assert [type(e).__name__ for e in reads.push("Hi <tool")] == ["TextPiece"]
    assert reads.push('_call>{"name": "get_weather", "arguments": ') == []
    begins, piece = reads.push('{"city": "Os')
    assert begins == CallBegins(0, "id0", "get_weather")
    assert piece == CallArguments(0, '{"city": "Os')
    assert [type(e).__name__ for e in reads.push('lo"}')] == ["CallArguments", "CallEnds"]


def test_a_call_that_is_cut_off_does_not_end() -> None:
    result = said(HERMES, '<tool_call>{"name": "now", "arguments": {"a": "b')
    assert result.calls == [("now", '{"a": "b')] and not result.ended
    result = said(HERMES, '<tool_call>{"name": "now", "arguments": {"a": b}}</tool_call> so')
    assert result.calls == [("now", '{"a": ')] and not result.ended
    assert result.text == "}}</tool_call> so"


def test_without_tools_calls_are_text_and_reasoning_is_not() -> None:
    answer = f"<think>a</think><tool_call>{JSON_NOW}</tool_call>"
    result = said(THINKS, answer, None)
    assert (result.reasoning, result.text) == ("a", answer.partition("</think>")[2])
    assert not parser("plain", None).special
    assert said(HARMONY, CASES["harmony, final"][1], None).reasoning == "A"


def test_a_prompt_may_open_the_reasoning() -> None:
    for answer in ("a </think> b", "<think>a </think> b"):
        result = said(THINKS, answer, TOOLS, "<|assistant|>\n<think>\n")
        assert (result.reasoning, result.text) == ("a", "b")
    closed = said(THINKS, "b", TOOLS, "<think>\n\n</think>\n\n")
    assert (closed.reasoning, closed.text) == ("", "b")


def test_ids_are_those_of_the_model_or_new_ones() -> None:
    answer = "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}[TOOL_CALLS]now[ARGS]{}"
    assert said("[TOOL_CALLS][ARGS]", answer).ids == ["abcdefghi", "id0"]


def test_deep_json_is_no_call() -> None:
    deep = '<tool_call>{"name": "now", "arguments": ' + '{"a":' * 2000
    assert not said(HERMES, deep).ended


def test_a_long_answer_is_read_in_little_time_a_piece() -> None:
    # Quadratic reading of 200,000 pieces would take minutes.
    result = said(THINKS, ["<think>", *["word "] * 100_000, "</think>", *["word "] * 100_000])
    assert len(result.text) > 400_000 and len(result.reasoning) > 400_000


def test_the_http_process_gets_it_without_numpy() -> None:
    program = (
        "import sys; import kvarn.runtime.chat.tool_calls; "
        "print(sorted({'numpy', 'numba', 'llguidance'} & sys.modules.keys()))"
    )
    assert printed(program).strip() == "[]"
