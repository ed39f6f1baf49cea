"""/v1/responses, with the client that OpenAI publishes. The oracle: its own types and its
accumulation of events, and what the fake engine was told to answer."""

from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace

from kvarn.runtime.sampling.constraints.form import Form
from kvarn.runtime.serving.prompt import Chat

from .fake_engine import FACTS, FakeEngine
from .test_tools import ANSWER, SCHEMA, TEMPLATE

TOOL: Any = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": True}


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def test_a_text_is_answered(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.responses.create(
        model="toy", input="Hi", instructions="Be.", max_output_tokens=2, temperature=0
    )
    assert (answer.output_text, answer.status) == ("Hello", "incomplete")
    assert answer.usage is not None and answer.usage.input_tokens_details.cached_tokens == 2
    prompt, fields = engine.asked[0]
    system, user = {"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}
    assert prompt == Chat([system, user])
    assert (fields["max_tokens"], fields["sampling"]) == (2, {"temp": 0})


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_text_and_calls_are_items(
    client: openai.OpenAI, engine: FakeEngine, stream: bool
) -> None:
    engine.facts = replace(FACTS, chat_template=TEMPLATE)
    engine.answer = [ANSWER[i : i + 3] for i in range(0, len(ANSWER), 3)]
    if stream:
        with client.responses.stream(model="toy", input="Weather?", tools=[TOOL]) as events:
            told = list(events)
            answer: Any = events.get_final_response()
        numbers = [event.sequence_number for event in told]
        assert numbers == sorted(set(numbers))
        text = "".join(one.delta for one in told if one.type == "response.output_text.delta")
        assert text == "I look."
        added = [one.item.type for one in told if one.type == "response.output_item.added"]
        assert added == ["reasoning", "message", "function_call"]
    else:
        answer = client.responses.create(model="toy", input="Weather?", tools=[TOOL])
    thought, message, call = answer.output
    assert thought.content[0].text == "hm, so"
    assert (message.content[0].text, message.status) == ("I look.", "completed")
    assert (call.name, call.arguments, call.type) == ("look", '{"city": "Umeå"}', "function_call")
    assert answer.status == "completed" and answer.usage.output_tokens == len(engine.answer)


def test_an_agents_items_are_one_answer(client: openai.OpenAI, engine: FakeEngine) -> None:
    items: Any = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
        {"role": "user", "content": "Q"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "A", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"x": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ]
    tools: Any = [TOOL, {"type": "web_search"}, {"type": "custom", "name": "apply_patch"}]
    client.responses.create(
        model="toy", input=items, tools=tools, store=False, include=["reasoning.encrypted_content"]
    )
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"x": 1}}}
    prompt = engine.asked[0][0]
    assert isinstance(prompt, Chat)
    assert prompt.messages == [
        {"role": "system", "content": "D"},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A", "reasoning_content": "hm", "tool_calls": [called]},
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "look"},
    ]
    assert [tool["function"]["name"] for tool in prompt.tools or ()] == ["look"]


SPACE: Any = {
    "type": "namespace",
    "name": "eyes",
    "description": "Tools that see.",
    "tools": [TOOL, {"type": "function", "name": "blink"}],
}


@pytest.mark.parametrize("stream", [False, True])
def test_functions_in_namespaces_have_both_names(
    client: openai.OpenAI, engine: FakeEngine, stream: bool
) -> None:
    """As in Codex, whose calls name the namespace beside the function."""
    engine.facts = replace(FACTS, chat_template=TEMPLATE)
    answer = ANSWER.replace('"look"', '"eyes__look"')
    engine.answer = [answer[i : i + 3] for i in range(0, len(answer), 3)]
    items: Any = [
        {"role": "user", "content": "Q"},
        {
            "type": "function_call",
            "call_id": "c1",
            "namespace": "eyes",
            "name": "look",
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ]
    asked: Any = {"model": "toy", "input": items, "tools": [SPACE, {**TOOL, "name": "hear"}]}
    if stream:
        with client.responses.stream(**asked) as events:
            told = list(events)
        added = [one.item for one in told if one.type == "response.output_item.added"]
        call: Any = added[-1]
    else:
        call = client.responses.create(**asked).output[-1]
    assert (call.type, call.namespace, call.name) == ("function_call", "eyes", "look")
    prompt = engine.asked[0][0]
    assert isinstance(prompt, Chat) and prompt.tools is not None
    tools = [tool["function"] for tool in prompt.tools]
    assert [tool["name"] for tool in tools] == ["eyes__look", "eyes__blink", "hear"]
    assert tools[0]["description"].startswith("Tools that see.")
    assert prompt.messages[1]["tool_calls"][0]["function"]["name"] == "eyes__look"


def test_formats_become_constraints(client: openai.OpenAI, engine: FakeEngine) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    client.responses.create(model="toy", input="Hi", text=form)
    assert engine.asked[0][1]["constraint"] == Form("json_schema", '{"type":"object"}')


WRONG = [
    ({"input": []}, "input"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "judge", "content": "x"}]}, "input[0].role"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
    ),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace"}]}, "tools[0].name"),
    (
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]},
        "tools[0].tools[0].name",
    ),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_wrong_fields_are_named(
    http: httpx.Client, engine: FakeEngine, fields: Any, param: str
) -> None:
    answer = http.post("/v1/responses", json={"input": "Hi", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert engine.asked == []
