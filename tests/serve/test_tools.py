"""Tool calls and reasoning in all APIs, with the published clients. The oracle: what the fake
engine was told to write, in the form of Hermes."""

from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from msgspec.structs import replace

from .fake_engine import FACTS, FakeEngine

TEMPLATE = (
    "{% for tool in tools %}<tools>{{ tool | tojson }}</tools>{% endfor %}<think></think>"
    '<tool_call>{"name": <function-name>, "arguments": <args-json-object>}</tool_call>'
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
ASKED: Any = [{"role": "user", "content": "Weather?"}]
FUNCTION: Any = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Umeå"}}\n</tool_call>'
ANSWER = f"<think>\nhm, so\n</think>\n\nI look.\n{CALL}"


@pytest.fixture
def caller(engine: FakeEngine) -> FakeEngine:
    """An engine whose answers think, speak and call, in pieces of three characters."""
    engine.facts = replace(FACTS, chat_template=TEMPLATE)
    engine.answer = [ANSWER[i : i + 3] for i in range(0, len(ANSWER), 3)]
    return engine


@dataclass(frozen=True)
class Seen:
    """What a client made of an answer."""

    reasoning: str | None
    text: str | None
    name: str
    arguments: Any
    reason: str | None


def of_openai(address: str, stream: bool) -> Seen:
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    asked: Any = {"model": "toy", "messages": ASKED, "tools": [FUNCTION]}
    if stream:
        with client.chat.completions.stream(**asked) as events:
            thoughts = ""
            for event in events:
                if event.type == "chunk" and event.chunk.choices:
                    thoughts += getattr(event.chunk.choices[0].delta, "reasoning_content", "") or ""
            choice: Any = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**asked).choices[0]
        thoughts = choice.message.reasoning_content
    [call] = choice.message.tool_calls
    assert call.id and call.type == "function"
    function = call.function
    return Seen(
        thoughts, choice.message.content, function.name, function.arguments, choice.finish_reason
    )


def of_anthropic(address: str, stream: bool) -> Seen:
    client = anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)
    tools: Any = [{"name": "look", "input_schema": SCHEMA}]
    asked: Any = {"model": "toy", "messages": ASKED, "tools": tools, "max_tokens": 999}
    if stream:
        with client.messages.stream(**asked) as events:
            answer: Any = events.get_final_message()
    else:
        answer = client.messages.create(**asked)
    thinking, text, call = answer.content
    return Seen(thinking.thinking, text.text, call.name, call.input, answer.stop_reason)


def of_ollama(address: str, stream: bool) -> Seen:
    parts: Any = ollama.Client(address).chat("toy", ASKED, tools=[FUNCTION], stream=stream)
    messages = [part.message for part in parts] if stream else [parts.message]
    [call] = [call for one in messages for call in one.tool_calls or ()]
    thoughts = "".join(one.thinking or "" for one in messages)
    text = "".join(one.content or "" for one in messages)
    return Seen(thoughts, text, call.function.name, call.function.arguments, None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("ask", "arguments", "reason"),
    [
        (of_openai, '{"city": "Umeå"}', "tool_calls"),
        (of_anthropic, {"city": "Umeå"}, "tool_use"),
        (of_ollama, {"city": "Umeå"}, None),
    ],
)
def test_calls_and_reasoning_are_told(
    address: str, caller: FakeEngine, ask: Any, arguments: Any, reason: str | None, stream: bool
) -> None:
    assert ask(address, stream) == Seen("hm, so", "I look.", "look", arguments, reason)
    fields = caller.asked[0][1]
    assert fields["special"] and fields["constraint"].trigger == ("<tool_call>",)
    [message] = caller.remembered
    called = message["tool_calls"][0]["function"]
    assert called == {"name": "look", "arguments": {"city": "Umeå"}}
    assert (message["content"], message["reasoning_content"]) == ("I look.", "hm, so")


def test_choices_of_tools_become_constraints(http: httpx.Client, caller: FakeEngine) -> None:
    chat, messages = "/v1/chat/completions", "/v1/messages"
    named = {"type": "function", "function": {"name": "look"}}
    blocks = {"tools": [{"name": "look", "input_schema": SCHEMA}], "max_tokens": 9}
    for path, fields in (
        (chat, {"tools": [FUNCTION], "tool_choice": "required"}),
        (chat, {"tools": [FUNCTION], "tool_choice": named}),
        (messages, {**blocks, "tool_choice": {"type": "any"}}),
        (messages, {**blocks, "tool_choice": {"type": "tool", "name": "look"}}),
    ):
        assert http.post(path, json={"messages": ASKED, **fields}).status_code == 200
    constraints = [fields["constraint"] for _, fields in caller.asked]
    assert {(one.kind, one.trigger) for one in constraints} == {("lark", ())}
    assert constraints[0] == constraints[2] and constraints[1] == constraints[3]


def test_no_tools_are_offered_where_none_may_be_called(
    http: httpx.Client, caller: FakeEngine
) -> None:
    body = {"messages": ASKED, "tools": [FUNCTION], "tool_choice": "none"}
    answer = http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert (answer["finish_reason"], "tool_calls" in answer["message"]) == ("stop", False)
    prompt, fields = caller.asked[0]
    assert prompt.tools is None and fields["constraint"] is None  # type: ignore[union-attr]


def test_an_answer_ends_after_one_call_where_it_may_have_one(
    http: httpx.Client, caller: FakeEngine
) -> None:
    caller.answer = [CALL, CALL, "more"]
    body = {"messages": ASKED, "tools": [FUNCTION], "parallel_tool_calls": False}
    answer = http.post("/v1/chat/completions", json=body).json()
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
    assert answer["usage"]["completion_tokens"] == 2 and caller.cancelled == 1
    del body["parallel_tool_calls"]
    answer = http.post("/v1/chat/completions", json=body).json()
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 2


def test_tools_and_a_form_exclude_each_other(http: httpx.Client, caller: FakeEngine) -> None:
    form = {"response_format": {"type": "json_object"}}
    body = {"messages": ASKED, "tools": [FUNCTION], **form}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400 and "exclude each other" in answer.text
    body["tool_choice"] = "none"
    assert http.post("/v1/chat/completions", json=body).status_code == 200
