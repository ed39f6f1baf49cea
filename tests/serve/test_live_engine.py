"""`kvarn serve` as users start it, with the published clients. Oracles: the model in this process,
and JSON's parser."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvarn import Conversation, Sampler, load
from kvarn.runtime.loading.default_model import default_model_path

TEXT = "Once upon a time there was a mill."
HELLO: Any = [{"role": "user", "content": f"{TEXT * 6} Who stood by it?"}]


@contextmanager
def served(*words: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of `kvarn serve` once its model is there, and its process."""
    command = [sys.executable, "-m", "kvarn", "serve", "--port", "0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if match := re.search(r"http://\S+:\d+", line):
                    break
            else:
                pytest.fail("the server has not said where it listens")
            end = time.monotonic() + 280  # kernels may have to be compiled
            while (answer := httpx.get(f"{match[0]}/health")).status_code != 200:
                assert answer.json()["status"] == "loading model" and time.monotonic() < end
                time.sleep(0.05)
            yield match[0], process
        finally:
            process.terminate()
            process.stderr.read()


@pytest.fixture(scope="module")
def at() -> Iterator[str]:
    """The address of a server of kvarn-mini."""
    with served(str(default_model_path()), "--ctx", "2048") as (address, _):
        yield address


@pytest.fixture(scope="module")
def client(at: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{at}/v1", api_key="none", max_retries=0)


def test_texts_are_those_of_the_model(client: openai.OpenAI) -> None:
    context = load(default_model_path()).context(512)
    expected = "".join(context.generate(TEXT, max_tokens=12, sampler=Sampler(temp=0)))
    asked: Any = {"model": "default", "prompt": TEXT, "max_tokens": 12, "temperature": 0}
    assert client.completions.create(**asked).choices[0].text == expected
    chunks = client.completions.create(**asked, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected


def test_metrics_say_in_a_sentence_what_they_count(at: str, client: openai.OpenAI) -> None:
    client.completions.create(model="default", prompt=TEXT, max_tokens=4)
    end, families = time.monotonic() + 30, {}
    while "kvarn_generated_tokens" not in families:
        assert time.monotonic() < end
        answer = httpx.get(f"{at}/metrics")
        assert answer.status_code == 200, answer.text
        families = {one.name: one for one in text_string_to_metric_families(answer.text)}
    for name, family in families.items():
        words = family.documentation.split()
        assert len(words) > 3 and words[0][0].isupper() and words[-1].endswith("."), name
    gauges = {name for name, family in families.items() if family.type == "gauge"}
    assert gauges == {
        *("kvarn_http_requests_running", "kvarn_engine_ready", "kvarn_active", "kvarn_waiting"),
        *("kvarn_library_bytes", "kvarn_library_texts"),
    }


def test_the_lens_shows_texts_of_the_prompt(at: str) -> None:
    prompt = "".join(f"House {n} is the miller's.\n" for n in range(140)) + "Who lives there?"
    asked: Any = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    reading = {"method": "topk", "budget": "2%", "lens": True}
    answer = httpx.post(f"{at}/v1/completions", json={**asked, **reading}, timeout=120).json()
    passages = answer["lens"]["passages"]
    assert len(passages) > 1 and answer["lens"]["note"] == ""
    for one in passages:
        line = int(one["place"].removeprefix("line "))
        assert one["text"] in prompt and 0 < one["share"] <= 1
        assert any(text in one["text"] for text in prompt.splitlines()[line - 1].split())
    shares = [one["share"] for one in passages]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 1.000001


def test_all_apis_give_the_same_answer(at: str, client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        model="kvarn-mini", messages=HELLO, max_tokens=8, temperature=0
    )
    text = first.choices[0].message.content
    assert text and first.usage is not None
    other = anthropic.Anthropic(base_url=at, api_key="none", max_retries=0)
    asked: Any = {"model": "kvarn-mini", "messages": HELLO}
    count = other.messages.count_tokens(**asked)
    assert count.input_tokens == first.usage.prompt_tokens
    answer = other.messages.create(**asked, max_tokens=8, extra_body={"temperature": 0})
    assert [block.text for block in answer.content if block.type == "text"] == [text]
    assert answer.stop_reason == "max_tokens"
    # What was read for the first client was not read again.
    assert answer.usage.cache_read_input_tokens >= first.usage.prompt_tokens - 1
    options = {"temperature": 0, "num_predict": 8}
    parts = ollama.Client(at).chat("kvarn-mini", HELLO, options=options, stream=True)
    assert "".join(part.message.content or "" for part in parts) == text
    response = client.responses.create(
        model="kvarn-mini", input=HELLO[0]["content"], max_output_tokens=8, temperature=0
    )
    assert response.output_text == text


def test_schemas_and_required_calls_hold(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"mills": {"type": "integer", "maximum": 9}},
        "required": ["mills"],
        "additionalProperties": False,
    }
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    made = client.chat.completions.create(
        model="kvarn-mini", messages=HELLO, response_format=form, seed=1, max_tokens=200
    )
    assert [*json.loads(made.choices[0].message.content or "")] == ["mills"]
    tool: Any = {"type": "function", "function": {"name": "count", "parameters": schema}}
    called: Any = client.chat.completions.create(
        model="kvarn-mini", messages=HELLO, tools=[tool], tool_choice="required", max_tokens=200
    )
    [call] = called.choices[0].message.tool_calls
    assert call.function.name == "count" and [*json.loads(call.function.arguments)] == ["mills"]
    assert called.choices[0].finish_reason == "tool_calls"


def test_vectors_have_norm_one(client: openai.OpenAI) -> None:
    made = client.embeddings.create(model="kvarn-mini", input=["a mill", "a house"])
    for one in made.data:
        assert sum(x * x for x in one.embedding) == pytest.approx(1, abs=1e-5)


def test_ollamas_long_texts_are_cut_unless_it_says_no(at: str) -> None:
    body = {"model": "kvarn-mini", "input": "mill " * 5000}
    cut = httpx.post(f"{at}/api/embed", json=body).json()
    assert cut["prompt_eval_count"] == 2048 and len(cut["embeddings"]) == 1
    refused = httpx.post(f"{at}/api/embed", json=body | {"truncate": False})
    assert refused.status_code == 400 and "room for 2,048" in refused.text


def test_what_the_engine_refuses_is_told(at: str, client: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "mill " * 5000}]
    with pytest.raises(openai.BadRequestError, match=r"room for 2,048") as raised:
        client.chat.completions.create(model="kvarn-mini", messages=long)
    assert raised.value.code == "context_length_exceeded"
    for fields in ({"method": "guess"}, {"regex": "["}, {"pack": "nowhere"}, {"budget": "-1%"}):
        answer = httpx.post(
            f"{at}/v1/chat/completions", json={"messages": HELLO, "max_tokens": 1, **fields}
        )
        assert answer.status_code in (400, 404), answer.text


def test_a_document_is_read_once(at: str) -> None:
    text = " ".join(f"Mill {i} stood by the river." for i in range(60))
    made = httpx.post(f"{at}/packs", json={"name": "mills", "text": text, "stream": False}).json()
    n_tokens = made["pack"]["n_tokens"]
    body = {"messages": HELLO, "max_tokens": 2, "pack": "mills"}
    usage = httpx.post(f"{at}/v1/chat/completions", json=body).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= n_tokens - 1
    left = httpx.delete(f"{at}/packs/mills").json()["packs"]
    assert "mills" not in [pack["name"] for pack in left]


def test_a_signal_ends_streams_and_the_server() -> None:
    with served(str(default_model_path()), "--ctx", "65536") as (address, process):
        body = {"prompt": TEXT, "stream": True, "max_tokens": 60000, "ignore_eos": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            while not next(lines).startswith("data: "):
                pass
            process.send_signal(signal.SIGTERM)
            *_, last = (line for line in lines if line)
            assert "the server ends, and ended the answer" in last
        assert process.stderr is not None
        process.stderr.read()
        assert process.wait(60) == 0


@pytest.mark.data
def test_a_real_model_chats() -> None:
    path = Path.home() / ".cache/kvarn-real/SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        pytest.skip(f"no {path}: data/real_models.py smollm2 makes it")
    with served(str(path), "--ctx", "2048") as (address, _):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        asked: Any = [{"role": "user", "content": "What is the capital of France?"}]
        first = client.chat.completions.create(
            model="default", messages=asked, temperature=0, max_tokens=40
        )
        talk = Conversation(load(path).context(256), sampler=Sampler(temp=0), max_tokens=40)
        text = first.choices[0].message.content
        assert text == "".join(talk.ask(asked[0]["content"])) and first.usage is not None
        answered = {"role": "assistant", "content": text}
        messages: Any = [*asked, answered, {"role": "user", "content": "And of Italy?"}]
        second = client.chat.completions.create(
            model="default", messages=messages, temperature=0, max_tokens=20
        )
        usage = second.usage
        assert usage is not None and usage.prompt_tokens_details is not None
        n_cached, read = usage.prompt_tokens_details.cached_tokens, first.usage.total_tokens
        assert n_cached is not None and n_cached >= read - 1
