"""Answers in the formats of models, and what they say."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvarn.runtime.chat.tool_calls import (
    CallArguments,
    CallBegins,
    CallEnds,
    Event,
    ReasoningPiece,
    StreamParser,
    TextPiece,
    parser_for,
)

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "metric": {"type": "boolean"},
                    "where": {"type": "object"},
                    "hours": {"type": "array", "items": {"type": "integer"}},
                    "limit": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "The time",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]

HERMES = "<tool_call>"
XML = "<tool_call><function= <parameter= <think>"
GLM = "<tool_call> <arg_key> <think>"
LLAMA = "<|python_tag|>"
MISTRAL = "[TOOL_CALLS] [THINK]"
HARMONY = "<|channel|> <|message|>"
GEMMA = "<|tool_call> <|channel>thought <channel|>"
FUNCTION_GEMMA = "<start_function_call>"
THINKS = "<think> </think> <tool_call>"
PLAIN = "nothing of it"


@dataclass
class Said:
    """The events of an answer, joined."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def add(self, event: Event) -> None:
        kind = type(event).__name__
        if not self.order or self.order[-1] != kind:
            self.order.append(kind)
        match event:
            case TextPiece(text):
                self.text += text
            case ReasoningPiece(text):
                self.reasoning += text
            case CallBegins(index, id, name):
                assert index == len(self.calls)
                self.calls.append((name, ""))
                self.ids.append(id)
            case CallArguments(index, piece):
                assert index == len(self.calls) - 1 and index not in self.ended
                self.calls[-1] = (self.calls[-1][0], self.calls[-1][1] + piece)
            case CallEnds(index):
                assert index == len(self.calls) - 1
                json.loads(self.calls[-1][1])  # the promise of this event
                self.ended.append(index)

    @property
    def values(self) -> list[tuple[str, Any]]:
        """The calls that have ended, with their arguments read."""
        return [(name, json.loads(text)) for name, text in (self.calls[i] for i in self.ended)]


def parser(
    template: str, tools: Sequence[dict[str, Any]] | None = TOOLS, prompt_end: str = ""
) -> StreamParser:
    numbers = itertools.count()
    return parser_for(template, tools, prompt_end, lambda: f"id{next(numbers)}")


def said(
    template: str,
    pieces: str | Iterable[str],
    tools: Sequence[dict[str, Any]] | None = TOOLS,
    prompt_end: str = "",
) -> Said:
    """What an answer says that comes in pieces."""
    reads, joined = parser(template, tools, prompt_end), Said()
    for piece in [pieces] if isinstance(pieces, str) else pieces:
        for event in reads.push(piece):
            joined.add(event)
    for event in reads.finish():
        joined.add(event)
    return joined


OSLO = ("get_weather", {"city": "Oslo", "days": 2})
NOW: tuple[str, dict[str, Any]] = ("now", {})
JSON_OSLO = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}'
JSON_NOW = '{"name": "now", "arguments": {}}'

# Template, answer, text, reasoning, calls.
CASES: dict[str, tuple[str, str, str, str, list[tuple[str, Any]]]] = {
    "hermes": (HERMES, f"Let me see.\n<tool_call>\n{JSON_OSLO}\n</tool_call>", "Let me see.", "",
               [OSLO]),
    "hermes, two": (HERMES, f"<tool_call>{JSON_OSLO}</tool_call>\n<tool_call>\n{JSON_NOW}\n"
                    "</tool_call>", "", "", [OSLO, NOW]),
    "hermes, two in one": (HERMES, f"<tool_call>{JSON_OSLO}\n{JSON_NOW}</tool_call> ok", "ok", "",
                           [OSLO, NOW]),
    "hermes, arguments first": (HERMES, '<tool_call>{"arguments": {"city": "Oslo", "days": 2}, '
                                '"name": "get_weather"}</tool_call>', "", "", [OSLO]),
    "hermes, arguments as text": (HERMES, '<tool_call>{"name": "get_weather", "arguments": '
                                  '"{\\"city\\": \\"Oslo\\", \\"days\\": 2}"}</tool_call>', "", "",
                                  [OSLO]),
    "hermes, no arguments": (HERMES, '<tool_call>{"name": "now"}</tool_call>', "", "", [NOW]),
    "hermes, a brace short": (HERMES, f"<tool_call>{JSON_OSLO[:-1]}\n</tool_call>", "", "", [OSLO]),
    "hermes, no JSON": (HERMES, "<tool_call>get_weather(Oslo)</tool_call> sorry",
                        "<tool_call>get_weather(Oslo)</tool_call> sorry", "", []),
    "hermes, no name": (HERMES, 'A <tool_call> {"city": "Oslo"}</tool_call>',
                        'A <tool_call> {"city": "Oslo"}</tool_call>', "", []),
    "hermes, cut": (HERMES, '<tool_call>{"na', '<tool_call>{"na', "", []),
    "hermes, half a marker": (HERMES, "1 <tool_", "1 <tool_", "", []),
    "xml": (XML, "Hm.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n"
            "</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
            "Hm.", "", [OSLO]),
    "xml, types": (
        XML,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n\nA \"b\" <c>\n12\n\n</parameter>\n"
        "<parameter=metric>\nTrue\n</parameter>\n<parameter=where>\n{\"a\": [1]}\n</parameter>\n"
        "<parameter=hours>[1, 2]</parameter>\n<parameter=limit>\nnull\n</parameter>\n"
        "<parameter=days>\nsoon\n</parameter>\n<parameter=more>\n5\n</parameter>\n"
        "</function>\n</tool_call>",
        "", "",
        [("get_weather", {"city": "\nA \"b\" <c>\n12\n", "metric": True, "where": {"a": [1]},
                          "hours": [1, 2], "limit": None, "days": "soon", "more": "5"})],
    ),
    "xml, two, one without a tag": (
        XML, "<function=now>\n</function>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "", "", [NOW, NOW]),
    "xml, nothing": (XML, "<tool_call>\nnow()\n</tool_call>", "<tool_call>\nnow()\n</tool_call>",
                     "", []),
    "glm 4.5": (
        GLM, "\n<think>a\nb</think>\nHm\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
        "</tool_call>\n<tool_call>now\n</tool_call>", "Hm", "a\nb", [OSLO, NOW]),
    "glm 4.7": (
        GLM, "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>now</tool_call>",
        "", "", [OSLO, NOW]),
    "glm, nothing": (GLM, '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', "",
                     []),
    "llama": (LLAMA, '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}', "", "",
              [OSLO]),
    "llama, two": (LLAMA, '<|python_tag|>{"name": "now", "parameters": {}}; '
                   '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}', "", "",
                   [NOW, OSLO]),
    "llama, built in": (LLAMA, '<|python_tag|>brave_search.call(query="a b", n=3)', "", "",
                        [("brave_search", {"query": "a b", "n": 3})]),
    "llama, code": (LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", "", []),
    "llama, other JSON": (LLAMA, '{"title": "name", "n": [1]}', '{"title": "name", "n": [1]}', "",
                          []),
    "llama, no tool": (LLAMA, '{"name": "Bo", "parameters": {}}',
                       '{"name": "Bo", "parameters": {}}', "", []),
    "llama, later": (LLAMA, f"Use {JSON_OSLO}", f"Use {JSON_OSLO}", "", []),
    "mistral, array": (MISTRAL, f"[TOOL_CALLS][{JSON_OSLO[:-1]}, \"id\": \"abcdefghi\"}}, "
                       f"{JSON_NOW}]", "", "", [OSLO, NOW]),
    "mistral, named": (
        MISTRAL, '[THINK]So.[/THINK]I do.[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 2}'
        "[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}", "I do.", "So.", [OSLO, NOW]),
    "mistral, nothing": (MISTRAL, "[TOOL_CALLS] none", "[TOOL_CALLS] none", "", []),
    "harmony": (
        HARMONY, "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>"
        "commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary "
        "to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Oslo", "days": 2}<|call|>', "I look.", "Think.",
        [OSLO]),
    "harmony, recipient first": (
        HARMONY, " to=functions.now<|channel|>commentary json<|message|>{}", "", "", [NOW]),
    "harmony, final": (HARMONY, "<|channel|>analysis<|message|>A<|end|><|start|>assistant"
                       "<|channel|>final<|message|>B  c\n", "B  c\n", "A", []),
    "harmony, no header": (HARMONY, " Just text", " Just text", "", []),
    "harmony, no JSON": (HARMONY, "<|channel|>commentary to=functions.now<|message|>later<|call|>",
                         "later", "", []),
    "gemma 4": (
        GEMMA, '<|channel>thought\nHm.\n<channel|><|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,'
        "days:2}<tool_call|><|tool_call>call:now{}<tool_call|>", "", "Hm.", [OSLO, NOW]),
    "gemma 4, nested": (
        GEMMA, '<|tool_call>call:f{a:{b:[1,<|"|>{"x"}<|"|>,true,null],<|"|>c d<|"|>:-1.5},'
        'e:[]}<tool_call|>', "", "",
        [("f", {"a": {"b": [1, '{"x"}', True, None], "c d": -1.5}, "e": []})]),
    "gemma 4, nothing": (GEMMA, "<|tool_call>no<tool_call|>", "<|tool_call>no<tool_call|>", "", []),
    "function gemma": (
        FUNCTION_GEMMA, "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:2}"
        "<end_function_call>", "", "", [OSLO]),
    "thinking": (THINKS, f"<think>\nA <b>\n\n</think>\n\nSo <tool_call>{JSON_NOW}</tool_call>",
                 "So", "A <b>", [NOW]),
    "thinking, cut": (THINKS, "<think>never ends </thi", "", "never ends </thi", []),
    "thinking, later": (THINKS, "See <think>", "See <think>", "", []),
    "other": (PLAIN, f" {JSON_OSLO}", "", "", [OSLO]),
    "other, text": (PLAIN, "  Hello\n\n{}\n ", "  Hello\n\n{}\n ", "", []),
}  # fmt: skip
