"""/v1/chat/completions, with the client that OpenAI publishes. The oracle: its own types, and what
the fake engine was told to answer."""

from typing import Any

import httpx
import openai
import pytest

from kvarn.runtime.sampling.constraints.form import Form
from kvarn.runtime.serving.prompt import Chat
from kvarn.runtime.serving.protocol import Refused

from .fake_engine import FakeEngine

HELLO: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def test_a_conversation_is_answered(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.chat.completions.create(model="toy", messages=HELLO)
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (10, 3)
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert engine.asked[0][0] == Chat([{"role": "user", "content": "Hi"}])
    assert engine.remembered == [{"role": "assistant", "content": "Hello!"}]


def test_a_stream_has_the_same_answer(client: openai.OpenAI, engine: FakeEngine) -> None:
    chunks = list(
        client.chat.completions.create(
            model="toy", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    text = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(text) == "Hello!" and text.count("") == 2
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 13
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_several_answers_come_side_by_side(
    client: openai.OpenAI, engine: FakeEngine, stream: bool
) -> None:
    answers = client.chat.completions.create(
        model="toy", messages=HELLO, n=3, seed=5, stream=stream
    )
    texts = ["", "", ""]
    if stream:
        for chunk in answers:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
    else:
        assert answers.usage.prompt_tokens == 10 and answers.usage.completion_tokens == 9
        texts = [choice.message.content for choice in answers.choices]
    assert texts == ["Hello!"] * 3
    assert [fields["sampling"]["seed"] for _, fields in engine.asked] == [5, 6, 7]


def test_sampling_and_reading_arrive(client: openai.OpenAI, engine: FakeEngine) -> None:
    client.chat.completions.create(
        model="toy",
        messages=HELLO,
        temperature=0,
        top_p=0.5,
        seed=7,
        logit_bias={"5": -100},
        presence_penalty=0.5,
        max_completion_tokens=2,
        stop=["x", "y"],
        reasoning_effort="none",
        extra_body={
            "top_k": 3,
            "min_p": 0.1,
            "repeat_penalty": 1.1,
            "method": "hash",
            "budget": "2%",
            "pack": "book",
            "cache_prompt": True,
            "chat_template_kwargs": {"a": 1},
        },
    )
    prompt, fields = engine.asked[0]
    assert isinstance(prompt, Chat) and prompt.extra == {"enable_thinking": False, "a": 1}
    assert fields["sampling"] == {
        "temp": 0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "presence_penalty": 0.5,
        "seed": 7,
        "logit_bias": {5: -100},
    }
    assert (fields["max_tokens"], fields["stop"]) == (2, ["x", "y"])
    assert (fields["reading"].words, fields["reading"].pack) == (
        {"method": "hash", "budget": "2%"},
        "book",
    )


def test_the_samplers_of_llama_cpp_arrive(client: openai.OpenAI, engine: FakeEngine) -> None:
    given = {
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": [";"],
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "top_n_sigma": 1.5,
        "dynatemp_range": 0.4,
        "dynatemp_exponent": 2.0,
        "mirostat": 0,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "adaptive_target": 0.6,
        "adaptive_decay": 0.5,
        "samplers": ["dry", "top-k", "adaptive_p"],
    }
    asked: Any = {"model": "toy", "messages": HELLO}
    client.chat.completions.create(**asked, extra_body=given)
    assert engine.asked[0][1]["sampling"] == given
    client.chat.completions.create(**asked, extra_body={"samplers": "kt"})
    assert engine.asked[1][1]["sampling"] == {"samplers": ["top_k", "temperature"]}
    for wrong in ({"samplers": ["top_q"]}, {"samplers": "kz"}, {"mirostat": 3}):
        with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
            client.chat.completions.create(**asked, extra_body=wrong)


def test_logprobs_are_told(client: openai.OpenAI, engine: FakeEngine) -> None:
    asked: Any = {"model": "toy", "messages": HELLO, "logprobs": True, "top_logprobs": 1}
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    tokens = [(one.token, one.logprob, len(one.top_logprobs)) for one in choice.logprobs.content]
    assert tokens == [("Hel", -0.5, 1), ("lo", -0.5, 1), ("!", -0.5, 1)]
    streamed = [
        one.token
        for chunk in client.chat.completions.create(**asked, stream=True)
        if chunk.choices[0].logprobs
        for one in chunk.choices[0].logprobs.content or ()
    ]
    assert streamed == ["Hel", "lo", "!"]


@pytest.mark.parametrize(
    ("form", "constraint"),
    [
        ({"type": "json_object"}, Form("json_object")),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            Form("json_schema", '{"type":"object"}'),
        ),
        ({"type": "text"}, None),
    ],
)
def test_formats_become_constraints(
    client: openai.OpenAI, engine: FakeEngine, form: Any, constraint: Form | None
) -> None:
    client.chat.completions.create(model="toy", messages=HELLO, response_format=form)
    assert engine.asked[0][1]["constraint"] == constraint


def test_an_agents_history_is_put_in_the_engines_form(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    messages: Any = [
        {
            "role": "developer",
            "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}],
        },
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    client.chat.completions.create(model="toy", messages=messages, tools=[tool, {"type": "web"}])
    called = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {"x": 1}}}
    assert engine.asked[0][0] == Chat(
        [
            {"role": "system", "content": "A\nB"},
            {"role": "user", "content": "Q"},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "hm",
                "tool_calls": [called],
            },
            {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "look"},
        ],
        [tool],
    )


def test_the_model_goes_on_with_an_answer_that_ends_the_messages(
    client: openai.OpenAI, engine: FakeEngine
) -> None:
    client.chat.completions.create(
        model="toy", messages=[*HELLO, {"role": "assistant", "content": "He"}]
    )
    prompt = engine.asked[0][0]
    assert isinstance(prompt, Chat) and prompt.continues


WRONG = [
    ({"messages": []}, "messages is [], expected one message or more", "messages"),
    ({"messages": 5}, "messages: expected array, got int", "messages"),
    (
        {"messages": [{"role": "user"}]},
        "messages[0].content is missing, expected a text, or a list of parts",
        "messages[0].content",
    ),
    (
        {"messages": [{"role": "judge", "content": "x"}]},
        "messages[0].role is 'judge', expected one of system, developer, user, assistant, tool",
        "messages[0].role",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type is 'image_url', expected text: this model reads no images, "
        "sound or files",
        "messages[0].content[0].type",
    ),
    ({"top_p": 3}, "top_p is 3.0, expected a number from 0 to 1", "top_p"),
    ({"temperature": "hot"}, "temperature: expected float | null, got str", "temperature"),
    ({"n": 0}, "n is 0, expected 1 to 64", "n"),
    (
        {"top_logprobs": 50, "logprobs": True},
        "top_logprobs is 50, expected 0 to 20",
        "top_logprobs",
    ),
    ({"max_tokens": -5}, "max_tokens is -5, expected 1 or more", "max_tokens"),
    ({"tool_choice": "required"}, None, "tool_choice"),
    ({"grammar": "root ::= x", "regex": "x"}, None, "regex"),
    (
        {"stop": ["x"] * 65},
        "stop has 65 texts of 65 characters, expected at most 64 of 1,000",
        "stop",
    ),
    ({"stop": "x" * 1001}, None, "stop"),
    ({"regex": "x" * 70_000}, "regex has 70,000 bytes, expected at most 65,536", "regex"),
    ({"grammar": "x" * 70_000}, None, "grammar"),
    ({"json_schema": {"title": "x" * 70_000}}, None, "json_schema"),
    ({"response_format": {"type": "json_schema"}}, None, "response_format.json_schema.schema"),
]


@pytest.mark.parametrize(("fields", "message", "param"), WRONG)
def test_wrong_fields_are_named(
    http: httpx.Client, engine: FakeEngine, fields: Any, message: str | None, param: str
) -> None:
    answer = http.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (
        400,
        "invalid_request_error",
        param,
    )
    assert message is None or error["message"] == message
    assert engine.asked == []


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("invalid", openai.BadRequestError),
        ("too long", openai.BadRequestError),
        ("not found", openai.NotFoundError),
        ("busy", openai.RateLimitError),
        ("engine", openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_has_a_status(
    client: openai.OpenAI, engine: FakeEngine, kind: Any, error: type[Exception], stream: bool
) -> None:
    engine.refusal = Refused(1, kind, "it cannot be")
    with pytest.raises(error, match="it cannot be") as raised:
        client.chat.completions.create(model="toy", messages=HELLO, stream=stream)
    response = raised.value.response  # type: ignore[attr-defined]
    assert ("retry-after" in response.headers) == (kind in ("busy", "engine"))


def test_another_model_is_not_there(client: openai.OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.NotFoundError, match="model is 'gpt', expected toy"):
        client.chat.completions.create(model="gpt", messages=HELLO)
    assert client.models.list().data[0].id == client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")
