"""kvarn's own paths: tokens, packs, state, counters, the description."""

import json
import re

import httpx

from kvarn.runtime.serving.protocol import Refused

from .fake_engine import FakeEngine


def test_texts_become_tokens_and_back(http: httpx.Client, engine: FakeEngine) -> None:
    asked = {"content": "hé", "with_pieces": True}
    tokens = http.post("/tokenize", json=asked).json()["tokens"]
    assert tokens == [
        {"id": 104, "piece": "h"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
    ]
    assert http.post("/tokenize", json={"content": "h"}).json() == {"tokens": [104]}
    begun = http.post("/tokenize", json={"content": "h", "add_special": True}).json()
    assert begun == {"tokens": [1, 104]}
    assert http.post("/detokenize", json={"tokens": [104, 105]}).json() == {"content": "hi"}
    assert http.post("/detokenize", json={"tokens": [-1]}).status_code == 400
    messages = [{"role": "user", "content": "x"}]
    rendered = http.post("/apply-template", json={"messages": messages}).json()
    assert rendered == {"prompt": "<user>x", "n_tokens": 7}


def test_a_document_is_read_with_progress(http: httpx.Client, engine: FakeEngine) -> None:
    with http.stream("POST", "/packs", json={"name": "book", "text": "abcd"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if "data" in line]
    assert [json.loads(one) for one in events] == [
        {"done": 0, "total": 4, "cached": 0},
        {"done": 4, "total": 4, "cached": 0},
        {"pack": {"name": "book", "n_tokens": 4}, "seconds": 0.0},
    ]
    whole = http.post("/packs", json={"name": "poem", "text": "ab", "stream": False}).json()
    assert whole["pack"] == {"name": "poem", "n_tokens": 2}
    packs = http.get("/packs").json()["packs"]
    assert packs[0] == {"name": "book", "n_tokens": 4, "n_bytes": 40, "model": "Toy"}
    assert [pack["name"] for pack in packs] == ["book", "poem"]
    left = http.delete("/packs/book").json()["packs"]
    assert [pack["name"] for pack in left] == ["poem"]
    assert http.delete("/packs/book").status_code == 404


def test_wrong_documents_are_refused(http: httpx.Client, engine: FakeEngine) -> None:
    for name, text, more in (("a/b", "x", {}), ("", "x", {}), ("a", "", {}), (".x", "x", {})):
        answer = http.post("/packs", json={"name": name, "text": text, **more})
        assert answer.status_code == 400
    assert http.post("/packs", json={"name": "a", "text": "x", "pack": "b"}).status_code == 400
    engine.refusal = Refused(1, "invalid", "there is no room")
    answer = http.post("/packs", json={"name": "a", "text": "x"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "there is no room")


def test_health_follows_the_engine(http: httpx.Client, engine: FakeEngine) -> None:
    assert http.get("/health").json()["status"] == "ok"
    engine.state, engine.notices = "loading", ["the disk is full"]
    answer = http.get("/health")
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert answer.json()["status"] == "loading model"
    assert answer.json()["notices"] == ["the disk is full"]
    body = {"messages": [{"role": "user", "content": "x"}]}
    refused = http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["message"] == "the model is loading (weights): try again soon"
    engine.state, engine.reason = "dead", "the engine ended with signal 9"
    refused = http.post("/v1/chat/completions", json=body)
    message = "the engine ended with signal 9: try again later"
    assert (refused.status_code, refused.json()["error"]["message"]) == (503, message)


def test_the_model_and_the_options_are_told(http: httpx.Client, engine: FakeEngine) -> None:
    told = http.get("/props").json()
    assert (told["total_slots"], told["default_generation_settings"]["n_ctx"]) == (4, 4096)
    assert told["chat_template"] == "{{ messages }}"


def test_counters_grow(http: httpx.Client, engine: FakeEngine) -> None:
    def asked() -> float:
        text = http.get("/metrics").text
        pattern = r'kvarn_http_requests_total{method="GET",path="/props",status="200"} (\S+)'
        assert "# TYPE kvarn_prompt_tokens_total counter\nkvarn_prompt_tokens_total 7.0\n" in text
        return float(match[1]) if (match := re.search(pattern, text)) else 0.0

    before = asked()
    http.get("/props")
    assert asked() == before + 1


def test_paths_and_methods_that_are_not_there(http: httpx.Client, engine: FakeEngine) -> None:
    for path in ("/v1/nothing", "/v1/messages/nothing", "/api/nothing", "/props/"):
        answer = http.get(path)
        error = answer.json()["error"]
        text = error if isinstance(error, str) else error["message"]
        assert answer.status_code == 404
        assert text == f"GET {path!r}: no such path; /openapi.json lists them"
    wrong = http.get("/v1/chat/completions")
    assert wrong.status_code == 405
    assert "method is 'GET', expected POST" in wrong.json()["error"]["message"]
    for path, methods in (("/packs", "GET, POST"), ("/packs/a", "DELETE"), ("/health", "GET")):
        wrong = http.put(path, content=b"{}")
        assert wrong.status_code == 405
        told = f"{path!r}: method is 'PUT', expected {methods}"
        assert wrong.json()["error"]["message"] == told


def test_the_description_names_all_paths_and_types(http: httpx.Client, engine: FakeEngine) -> None:
    told = http.get("/openapi.json").json()
    assert told["openapi"] == "3.1.0"
    assert {"/v1/chat/completions", "/v1/messages", "/api/chat", "/packs"} <= told["paths"].keys()
    assert told["paths"]["/packs/{name}"]["delete"]["parameters"][0]["name"] == "name"
    references = re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(told))
    schemas = told["components"]["schemas"]
    assert references and {*references} <= schemas.keys()
    body = told["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    reference = body["content"]["application/json"]["schema"]["$ref"]
    chat = schemas[reference.rpartition("/")[2]]
    assert "messages" in chat["required"] and "temperature" in chat["properties"]
