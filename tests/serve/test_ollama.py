"""Ollama's paths, with the client that Ollama publishes. The oracle: its own types, and what the
fake engine was told to answer."""

from typing import Any

import httpx
import ollama
import pytest

from kvarn.runtime.sampling.constraints.form import Form
from kvarn.runtime.serving.prompt import Chat, Text
from kvarn.runtime.serving.protocol import Refused

from .fake_engine import FakeEngine

HELLO: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def client(address: str) -> ollama.Client:
    return ollama.Client(address)


def test_a_conversation_is_answered(client: ollama.Client, engine: FakeEngine) -> None:
    options = {"temperature": 0, "num_predict": 2, "num_ctx": 99999, "stop": ["x"], "budget": "1%"}
    answer = client.chat("toy:latest", HELLO, options=options, think=False)
    assert (answer.message.content, answer.done_reason) == ("Hello", "length")
    assert (answer.prompt_eval_count, answer.eval_count) == (10, 2)
    prompt, fields = engine.asked[0]
    assert prompt == Chat(HELLO, None, {"enable_thinking": False})
    assert fields["sampling"] == {"temp": 0}
    assert (fields["max_tokens"], fields["n_ctx"], fields["stop"]) == (2, 4096, ["x"])
    assert fields["reading"].words == {"budget": "1%"}


@pytest.mark.parametrize("limit", [0, -1, -2])
def test_no_positive_limit_is_none(client: ollama.Client, engine: FakeEngine, limit: int) -> None:
    client.chat("toy", HELLO, options={"num_predict": limit})
    assert engine.asked[0][1]["max_tokens"] is None


def test_a_stream_has_the_same_answer(client: ollama.Client, engine: FakeEngine) -> None:
    parts = list(client.chat("toy", HELLO, stream=True))
    assert "".join(part.message.content or "" for part in parts) == "Hello!"
    assert [part.done for part in parts] == [False, False, False, True]


def test_texts_are_answered_or_continued(client: ollama.Client, engine: FakeEngine) -> None:
    assert client.generate("toy", "Hi", system="Be.").response == "Hello!"
    parts = client.generate("toy", "Hi", raw=True, stream=True)
    assert "".join(part.response for part in parts) == "Hello!"
    system = {"role": "system", "content": "Be."}
    assert [prompt for prompt, _ in engine.asked] == [Chat([system, *HELLO]), Text("Hi", True)]


def test_formats_become_constraints(client: ollama.Client, engine: FakeEngine) -> None:
    client.chat("toy", HELLO, format="json")
    client.chat("toy", HELLO, format={"type": "object"})
    constraints = [fields["constraint"] for _, fields in engine.asked]
    assert constraints == [
        Form("json_object"),
        Form("json_schema", '{"type":"object"}'),
    ]


def test_an_agents_history_is_put_in_the_engines_form(
    client: ollama.Client, engine: FakeEngine
) -> None:
    call = {"function": {"name": "look", "arguments": {"x": 1}}}
    messages: Any = [
        *HELLO,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_name": "look"},
    ]
    client.chat("toy", messages)
    prompt = engine.asked[0][0]
    assert isinstance(prompt, Chat)
    assert prompt.messages[1:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "", "type": "function", **call}],
        },
        {"role": "tool", "content": "42", "tool_call_id": "", "name": "look"},
    ]


def test_vectors_are_told(client: ollama.Client, engine: FakeEngine) -> None:
    assert client.embed("toy", ["a", "b"]).embeddings == [[1, 0, 0, 1]] * 2
    assert client.embeddings("toy", "a").embedding == [1, 0, 0, 1]


def test_the_model_is_told(client: ollama.Client, engine: FakeEngine) -> None:
    assert [one.model for one in client.list().models] == ["toy"]
    assert [one.model for one in client.ps().models] == ["toy"]
    shown = client.show("toy")
    assert shown.details is not None and shown.details.quantization_level == "Q4_1"
    assert shown.modelinfo is not None and shown.modelinfo["llama.context_length"] == 4096
    assert shown.capabilities == ["completion"]


def test_errors_have_ollamas_shape(
    client: ollama.Client, http: httpx.Client, engine: FakeEngine
) -> None:
    with pytest.raises(ollama.ResponseError, match="model is 'gpt', expected toy") as raised:
        client.chat("gpt", HELLO)
    assert raised.value.status_code == 404
    engine.refusal = Refused(1, "busy", "too many wait")
    with pytest.raises(ollama.ResponseError, match="too many wait") as raised:
        client.chat("toy", HELLO)
    assert raised.value.status_code == 429
    wrong = http.post("/api/chat", content='{"messages": HI}')
    assert wrong.status_code == 400 and wrong.json()["error"].startswith("the body is not JSON: ")
    with pytest.raises(ollama.ResponseError, match=r"messages\[0\].images has 1, expected none"):
        client.chat("toy", [{"role": "user", "content": "x", "images": ["aGk="]}])


KINDS = ["application/x-www-form-urlencoded", "text/plain", "application/JSON; charset=utf-8"]


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_json_is_taken_under_any_type(
    http: httpx.Client, engine: FakeEngine, kind: str | None
) -> None:
    """But for pages of other sites, which a browser lets send text without asking."""
    headers = {} if kind is None else {"content-type": kind}
    body = '{"model": "toy", "prompt": "Hi", "stream": false}'
    assert http.post("/api/generate", content=body, headers=headers).json()["response"] == "Hello!"
    answer = http.post("/v1/completions", content=body, headers=headers)
    assert answer.json()["choices"][0]["text"] == "Hello!"
    headers["origin"] = "http://elsewhere.example"
    assert http.post("/v1/completions", content=body, headers=headers).status_code == 403
