"""A server of a text encoder, as users start it: vectors as Python makes them, through three
clients' APIs, and one line for what it cannot do."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

import kvarn

from ..models.tiny_text_encoders import TinyEncoder, write
from .test_live_engine import served

TEXTS = ["the man eats bread", "sky", "a mill by the river"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("encoder") / "tiny.gguf", TinyEncoder())


@pytest.fixture(scope="module")
def at(model: Path) -> Iterator[str]:
    with served(str(model)) as (address, _):
        yield address


def test_vectors_are_those_of_python(at: str, model: Path) -> None:
    expected = kvarn.load_embedder(model).embed(TEXTS)
    client = openai.OpenAI(base_url=f"{at}/v1", api_key="none", max_retries=0)
    made = client.embeddings.create(model="tiny", input=TEXTS)
    np.testing.assert_allclose([one.embedding for one in made.data], expected, atol=1e-6)
    answer = httpx.post(f"{at}/api/embed", json={"model": "tiny", "input": TEXTS}).json()
    np.testing.assert_allclose(answer["embeddings"], expected, atol=1e-6)
    tokens = kvarn.load_tokenizer(model)
    ids = [tokens.encode(text, bos=True) for text in TEXTS]
    by_ids = client.embeddings.create(model="tiny", input=ids)
    np.testing.assert_allclose([one.embedding for one in by_ids.data], expected, atol=1e-6)
    assert made.usage.prompt_tokens == sum(map(len, ids))


def test_ollamas_long_texts_are_cut_unless_it_says_no(at: str, model: Path) -> None:
    long = "mill " * 99
    expected = kvarn.load_embedder(model).embed(long, truncate=True)
    for more in ({}, {"truncate": True}):
        answer = httpx.post(f"{at}/api/embed", json={"model": "tiny", "input": long, **more})
        np.testing.assert_allclose(answer.json()["embeddings"], expected, atol=1e-6)
        assert answer.json()["prompt_eval_count"] == 48


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/api/embed", {"model": "tiny", "input": "mill " * 99, "truncate": False}, 400, "has 101"),
        ("/v1/embeddings", {"input": "mill " * 99}, 400, "has 101 tokens"),
        ("/v1/embeddings", {"input": [[9999]]}, 400, "expected some of 0 to"),
        ("/v1/embeddings", {"input": " "}, 400, "is empty"),
        ("/v1/completions", {"prompt": "the sky"}, 400, "generates no text"),
        ("/packs", {"name": "a", "text": "sky", "stream": False}, 400, "generates no text"),
    ],
)
def test_what_cannot_be_is_told(
    path: str, body: dict[str, object], status: int, words: str, at: str
) -> None:
    answer = httpx.post(f"{at}{path}", json=body)
    assert answer.status_code == status and words in answer.text
    assert httpx.get(f"{at}/health").status_code == 200


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--draft", "ngram"], "--draft"),
        (["--ctx", "64", "--kv-type", "q8_0"], "--ctx, --kv-type"),
        (["--method", "topk", "--budget", "1%"], "--budget, --method"),
        (["--keep", "hashevict"], "--keep"),
    ],
)
def test_options_of_generation_are_refused(options: list[str], named: str, model: Path) -> None:
    """In one line, and the command ends: they would be without effect."""
    command = [sys.executable, "-m", "kvarn", "serve", str(model), "--port", "0", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    line = f"{model.name} is a text encoder (bert), which generates no text: omit {named}"
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, f"kvarn: {line}")
