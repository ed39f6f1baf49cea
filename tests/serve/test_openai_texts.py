"""/v1/completions and /v1/embeddings, with the client that OpenAI publishes."""

from typing import Any

import httpx
import openai
import pytest

from kvarn.runtime.serving.prompt import Text

from .fake_engine import FakeEngine


@pytest.fixture(scope="module")
def client(address: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


def test_texts_are_continued(client: openai.OpenAI, engine: FakeEngine) -> None:
    answer = client.completions.create(model="toy", prompt=["a", "b"], n=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["Hello!"] * 4
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (20, 12)
    prompts = [(prompt, fields["echo"], fields["max_tokens"]) for prompt, fields in engine.asked]
    texts = [Text("a", special=True), Text("b", special=True)]
    assert sorted(prompts, key=str) == [(text, True, 16) for text in texts for _ in range(2)]
    answer = client.completions.create(model="toy", prompt="a", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens == ["Hel", "lo", "!"]
    assert logprobs.top_logprobs is not None and len(logprobs.top_logprobs[0]) == 1


def test_a_stream_has_the_same_answer(client: openai.OpenAI, engine: FakeEngine) -> None:
    stream = client.completions.create(
        model="toy", prompt=[1, 2], stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello!"
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 13
    assert engine.asked[0][0] == [1, 2]


@pytest.mark.parametrize("prompts", [["a", "four"], [[97], [102, 111, 117, 114]]])
def test_offsets_go_on_from_chunk_to_chunk_of_each_answer(
    client: openai.OpenAI, prompts: object
) -> None:
    """They count from the start of the prompt, as OpenAI's do, its characters or those of its ids;
    the answer itself is "Hel", "lo", "!"."""
    asked: Any = {"model": "toy", "prompt": prompts, "logprobs": 1}
    whole = client.completions.create(**asked)
    offsets: list[list[int]] = [[], []]
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            logprobs = choice.logprobs
            assert logprobs is not None and logprobs.text_offset is not None
            offsets[choice.index] += logprobs.text_offset
    assert offsets == [[1, 4, 6], [4, 7, 9]]
    assert offsets == [one.logprobs.text_offset for one in whole.choices if one.logprobs]


@pytest.mark.parametrize("form", ["float", "base64"])
def test_vectors_are_told(client: openai.OpenAI, engine: FakeEngine, form: Any) -> None:
    answer = client.embeddings.create(model="toy", input=["a", "b"], encoding_format=form)
    vectors = [one.embedding for one in answer.data]
    expected: list[Any] = (
        [[1, 0, 0, 1]] * 2 if form == "float" else ["AACAPwAAAAAAAAAAAACAPw=="] * 2
    )
    assert vectors == expected
    assert answer.usage.prompt_tokens == 6
    assert client.embeddings.create(model="toy", input="a").data[0].embedding == [1, 0, 0, 1]


WRONG = [
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {}, "prompt"),
    ("completions", {"prompt": ["a", 1]}, "prompt"),
    ("completions", {"prompt": [-1]}, "prompt"),
    ("completions", {"prompt": ["a"] * 9, "n": 9}, "prompt"),
    ("completions", {"prompt": "a", "logprobs": 99}, "logprobs"),
    ("completions", {"prompt": "a", "logprobs": 1, "echo": True}, "echo"),
    ("completions", {"prompt": "a", "stream_options": 1}, "stream_options"),
    ("completions", {"prompt": "a", "suffix": "z"}, "suffix"),
    ("completions", {"prompt": "a", "n": 2, "best_of": 3}, "best_of"),
    ("completions", {"prompt": "a", "logit_bias": {"the": 1}}, "logit_bias"),
    ("embeddings", {"input": ""}, "input[0]"),
    ("embeddings", {"input": []}, "input"),
    ("embeddings", {"input": "a", "dimensions": 9}, "dimensions"),
]


@pytest.mark.parametrize(("path", "fields", "param"), WRONG)
def test_wrong_fields_are_named(
    http: httpx.Client, engine: FakeEngine, path: str, fields: Any, param: str
) -> None:
    answer = http.post(f"/v1/{path}", json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert engine.asked == []
