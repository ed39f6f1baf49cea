"""`kvarn serve` under many kinds of requests at once, whose clients may go away. Oracle: the same
requests alone, to a server without drafts and without a cache."""

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from kvarn.runtime.loading.default_model import default_model_path

from .test_live_engine import served

N_REQUESTS, N_AT_ONCE, N_CTX = 120, 10, 640
SENTENCES = (
    "The mill stood by the river. ",
    "A kestrel hung above the weir, and the miller's daughter counted its turns. ",
    "One two three, one two three, one two three. ",
)
READINGS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"method": "full"},
    {"method": "topk", "budget": "16"},
    {"method": "hash", "budget": "10%"},
    {"method": "magicpig"},
    {"method": "topk", "budget": "16", "prefill": "sparse"},
    {"keep": "streaming"},
    {"keep": "hashevict", "method": "topk"},
    {"keep": "snapkv"},
)
FORMS: tuple[dict[str, str], ...] = ({}, {}, {}, {"regex": "[a-z ]{8,30}\\."}, {"stop": "e"})


@dataclass(frozen=True)
class Asked:
    """A request. n_pieces: so many pieces of its stream are read; 0: the client goes away before
    the first, None: it does not."""

    path: str
    body: dict[str, Any]
    n_pieces: int | None


def asked(random: random.Random) -> Asked:
    """Any request: texts begin alike, and one in eight has no room in the context."""
    n = random.choice((1, 2, 3, 5, 8, 8, 13, 90))
    text = random.choice(SENTENCES) * n + random.choice(("", "Who", "The wheel", "one two"))
    is_chat = random.random() < 0.4
    prompt = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
    sampling = {"temperature": random.choice((0, 0, 0.8)), "seed": random.randrange(100)}
    body = {**prompt, **sampling, "max_tokens": random.choice((1, 7, 40, 120, 2000))}
    body |= random.choice(READINGS) | random.choice(FORMS) | {"stream": random.random() < 0.6}
    leaves = body["stream"] and random.random() < 0.5
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    return Asked(path, body, random.randrange(12) if leaves else None)


async def answer(client: httpx.AsyncClient, one: Asked) -> tuple[str, str]:
    """The text of an answer and how it ended: "left" where its client went away, or the reason why
    it was refused."""
    text, end = "", ""
    async with client.stream("POST", one.path, json=one.body) as response:
        if response.status_code != 200:
            refusal = json.loads(await response.aread())
            assert response.status_code == 400, refusal
            return "", refusal["error"]["message"]
        if not one.body["stream"]:
            choice = json.loads(await response.aread())["choices"][0]
            message = choice.get("message") or {"content": choice.get("text")}
            return message["content"], choice["finish_reason"]
        n_pieces = 0
        async for line in response.aiter_lines():
            if n_pieces == one.n_pieces:
                return text, "left"
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            end, n_pieces = choice["finish_reason"] or end, n_pieces + 1
    return text, end


async def answers(at: str, requests: list[Asked], n_at_once: int) -> list[tuple[str, str]]:
    """The answers to all requests, of which so many wait at a time."""
    free = asyncio.Semaphore(n_at_once)
    async with httpx.AsyncClient(base_url=at, timeout=120) as client:

        async def one_of(one: Asked) -> tuple[str, str]:
            async with free:
                return await answer(client, one)

        return await asyncio.gather(*map(one_of, requests))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_answers_among_many_are_those_alone(seed: int) -> None:
    made = random.Random(seed)
    requests = [asked(made) for _ in range(N_REQUESTS)]
    model = [str(default_model_path()), "--ctx", str(N_CTX)]
    whole = [Asked(one.path, one.body | {"stream": False}, None) for one in requests]
    with served(*model, "--parallel", "1", "--cache-size", "0") as (at, _):
        expected = asyncio.run(answers(at, whole, 1))
    with served(*model, "--parallel", "3", "--draft", "ngram") as (at, process):
        told = asyncio.run(answers(at, requests, N_AT_ONCE))
        assert process.poll() is None
    assert {"length", "stop", "left"} <= {end for _, end in told}
    for one, (text, end), (alone, how) in zip(requests, told, expected):
        assert alone.startswith(text) if end == "left" else (text, end) == (alone, how), one
