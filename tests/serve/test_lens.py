"""`lens`: what an answer attended to, as requests of OpenAI's API ask for it, and no others."""

import json
from typing import Any

import httpx
import msgspec
import pytest

from kvarn.runtime.lens.passages import Lens, Passage

from .fake_engine import FakeEngine

PASSAGES = [Passage(3, 20, 0.75, "The mill", "page 3"), Passage(40, 57, 0.25, "née\n", "line 1")]
TOLD = {
    "passages": [
        {"start": 3, "stop": 20, "share": 0.75, "text": "The mill", "place": "page 3"},
        {"start": 40, "stop": 57, "share": 0.25, "text": "née\n", "place": "line 1"},
    ],
    "note": "",
}
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
TEXT = ("/v1/completions", {"prompt": "x"})


def chunks(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", path, json={**body, "stream": True}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if "data: {" in line]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("path", "body"), [CHAT, TEXT])
def test_a_body_and_the_last_chunk_have_it(
    http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.lens = Lens(PASSAGES)
    assert http.post(path, json={**body, "lens": True}).json()["lens"] == TOLD
    sent = chunks(http, path, {**body, "lens": True})
    assert [chunk.get("lens") for chunk in sent] == [None] * (len(sent) - 1) + [TOLD]
    assert sent[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(("path", "body"), [CHAT, TEXT])
def test_without_the_word_nothing_is_watched(
    http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any]
) -> None:
    engine.lens = Lens(PASSAGES)
    for more in ({}, {"lens": False}, {"lens": None}):
        assert "lens" not in http.post(path, json={**body, **more}).json()
        assert not any("lens" in chunk for chunk in chunks(http, path, {**body, **more}))
    assert not any(fields["lens"] for _, fields in engine.asked)


def test_where_nothing_was_weighed_it_says_so(http: httpx.Client, engine: FakeEngine) -> None:
    engine.lens = Lens(note="tokens were evicted")
    told = http.post(CHAT[0], json={**CHAT[1], "lens": True}).json()["lens"]
    assert told == {"passages": [], "note": "tokens were evicted"}


def test_several_answers_have_none(http: httpx.Client, engine: FakeEngine) -> None:
    for path, body in (CHAT, TEXT):
        refused = http.post(path, json={**body, "lens": True, "n": 2})
        assert refused.status_code == 400
        expected = "lens shows one answer, the request has 2"
        assert refused.json()["error"]["message"] == expected
    texts = {"prompt": ["a", "b", "c"], "lens": True}
    assert http.post(TEXT[0], json=texts).status_code == 400
    assert http.post(TEXT[0], json={**texts, "lens": False}).status_code == 200
    assert http.post(CHAT[0], json={**CHAT[1], "lens": "yes"}).status_code == 400


def test_other_apis_ignore_the_word(http: httpx.Client, engine: FakeEngine) -> None:
    messages = [{"role": "user", "content": "x"}]
    for path, body in (
        ("/v1/messages", {"model": "default", "max_tokens": 4, "messages": messages}),
        ("/v1/responses", {"model": "default", "input": "x"}),
        ("/api/chat", {"model": "toy", "messages": messages, "stream": False}),
    ):
        answer = http.post(path, json={**body, "lens": True})
        assert answer.status_code == 200 and "lens" not in answer.json()
    assert not any(fields["lens"] for _, fields in engine.asked)


def test_it_survives_the_socket() -> None:
    lens = Lens(PASSAGES)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(lens), type=Lens) == lens
