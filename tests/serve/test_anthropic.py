"""/v1/messages, with the client that Anthropic publishes. The oracle: its own types, and what the
fake engine was told to answer."""

from typing import Any

import anthropic
import httpx
import pytest
from msgspec.structs import replace

from kvarn.runtime.sampling.constraints.form import Form
from kvarn.runtime.serving.prompt import Chat
from kvarn.runtime.serving.protocol import Refused

from .fake_engine import FACTS, FakeEngine
from .test_tools import CALL, SCHEMA, TEMPLATE

HELLO: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def client(address: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=address, api_key="none", max_retries=0)


def test_a_conversation_is_answered(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    engine.finish, engine.stop_text = "stop", "END"
    answer = client.messages.create(
        model="toy",
        max_tokens=9,
        messages=HELLO,
        system="Be.",
        stop_sequences=["END"],
        extra_body={"top_k": 4},
    )
    assert [block.text for block in answer.content if block.type == "text"] == ["Hello!"]
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (8, 2, 3)
    prompt, fields = engine.asked[0]
    assert prompt == Chat([{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}])
    assert (fields["max_tokens"], fields["stop"], fields["sampling"]) == (9, ["END"], {"top_k": 4})


def test_a_stream_has_the_same_answer(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    with client.messages.stream(model="toy", max_tokens=9, messages=HELLO) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_message()
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert [block.text for block in answer.content if block.type == "text"] == ["Hello!"]
    assert answer.stop_reason == "end_turn"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (8, 3)


def test_an_agents_history_is_put_in_the_engines_form(
    client: anthropic.Anthropic, engine: FakeEngine
) -> None:
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "Q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "A"},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "42"}],
                },
                {"type": "text", "text": "and?"},
            ],
        },
    ]
    tools: Any = [
        {"name": "look", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    system: Any = [
        {"type": "text", "text": "x-anthropic-billing-header: 123"},
        {"type": "text", "text": "Be.", "cache_control": {"type": "ephemeral"}},
    ]
    client.messages.create(model="toy", max_tokens=9, messages=messages, tools=tools, system=system)
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"x": 1}}}
    assert engine.asked[0][0] == Chat(
        [
            {"role": "system", "content": "Be."},
            {"role": "user", "content": "Q"},
            {
                "role": "assistant",
                "content": "A",
                "reasoning_content": "hm",
                "tool_calls": [called],
            },
            {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "look"},
            {"role": "user", "content": "and?"},
        ],
        [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    )


@pytest.mark.parametrize("stream", [False, True])
def test_blocks_keep_their_order(
    client: anthropic.Anthropic, engine: FakeEngine, stream: bool
) -> None:
    engine.facts = replace(FACTS, chat_template=TEMPLATE)
    engine.answer = [f"First.\n{CALL}\nThen.\n{CALL}"]
    tools: Any = [{"name": "look", "input_schema": SCHEMA}]
    asked: Any = {"model": "toy", "max_tokens": 99, "messages": HELLO, "tools": tools}
    if stream:
        with client.messages.stream(**asked) as events:
            answer: Any = events.get_final_message()
    else:
        answer = client.messages.create(**asked)
    kinds = [block.type for block in answer.content]
    assert kinds == ["text", "tool_use", "text", "tool_use"]
    texts = [block.text.strip() for block in answer.content if block.type == "text"]
    assert texts == ["First.", "Then."]


def test_thinking_and_formats_arrive(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    client.messages.create(
        model="toy",
        max_tokens=2000,
        messages=HELLO,
        thinking={"type": "enabled", "budget_tokens": 1024},
        extra_body={
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "array"}}}
        },
    )
    prompt, fields = engine.asked[0]
    assert isinstance(prompt, Chat) and prompt.extra == {"enable_thinking": True}
    assert fields["constraint"] == Form("json_schema", '{"type":"array"}')


def test_tokens_are_counted(client: anthropic.Anthropic, engine: FakeEngine) -> None:
    count = client.messages.count_tokens(model="toy", messages=HELLO, system="Be.")
    assert count.input_tokens == len("<system>Be.<user>Hi")
    assert engine.asked == []


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("too long", anthropic.BadRequestError),
        ("busy", anthropic.RateLimitError),
        ("engine", anthropic.InternalServerError),
    ],
)
def test_what_the_engine_refuses_has_a_status(
    client: anthropic.Anthropic, engine: FakeEngine, kind: Any, error: type[Exception]
) -> None:
    engine.refusal = Refused(1, kind, "it cannot be")
    with pytest.raises(error, match="it cannot be"):
        client.messages.create(model="toy", max_tokens=9, messages=HELLO)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0, expected 1 or more"),
        ({"max_tokens": None}, "max_tokens: expected int, got null"),
        ({"messages": []}, "messages is [], expected one message or more"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type is 'image', expected text: this model reads no images, "
            "sound or files",
        ),
        (
            {"tool_choice": {"type": "tool", "name": "x"}},
            "tool_choice.name is 'x', expected one of the tools: it has none",
        ),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type: invalid enum value 'some'"),
    ],
)
def test_wrong_fields_are_named(
    http: httpx.Client, engine: FakeEngine, fields: Any, message: str
) -> None:
    body = {"model": "toy", "max_tokens": 5, "messages": HELLO, **fields}
    answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 400
    kind = "invalid_request_error"
    assert answer.json() == {"type": "error", "error": {"type": kind, "message": message}}
    assert engine.asked == []


def test_the_models_list_has_anthropics_fields(client: anthropic.Anthropic) -> None:
    assert [one.id for one in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").display_name == "Toy"
