"""The detokenising stream: the same text as decoding at once, never half a character."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.runtime.tokenizer import Tokenizer

# Examples load or encode with whole vocabularies: on a busy machine some take long.
RELAXED = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def tokenizer(golden: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(golden["vocabularies"]["bpe"] | {"tokenizer.ggml.pre": "qwen2"})


@RELAXED
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
def test_whole_characters_only(tokenizer: Tokenizer, text: str) -> None:
    stream = tokenizer.stream()
    parts = [stream.push(token) for token in tokenizer.encode(text)]
    assert all("\ufffd" not in part for part in parts)
    assert "".join(parts) == text
    assert stream.flush() == ""


@RELAXED
@given(st.binary())
def test_broken_bytes_give_what_decoding_at_once_gives(tokenizer: Tokenizer, raw: bytes) -> None:
    ids = [tokenizer.id_of(text) for text in _byte_tokens(tokenizer, raw)]
    stream = tokenizer.stream()
    text = "".join(map(stream.push, ids)) + stream.flush()
    assert text == raw.decode("utf-8", "replace") == tokenizer.decode(ids)


def _byte_tokens(tokenizer: Tokenizer, raw: bytes) -> list[str]:
    spelt = {tokenizer.piece(token): tokenizer.text_of(token) for token in range(256)}
    return [spelt[bytes([byte])] for byte in raw]


def test_an_unfinished_character_is_shown_at_the_end(tokenizer: Tokenizer) -> None:
    first = next(token for token in range(256) if tokenizer.piece(token) == b"\xe4")
    stream = tokenizer.stream()
    assert stream.push(first) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(first) == ""  # the stream has started anew


def test_control_tokens_are_hidden_unless_asked_for(tokenizer: Tokenizer) -> None:
    end = tokenizer.eos_id
    assert end is not None
    assert tokenizer.stream().push(end) == ""
    assert tokenizer.stream(special=True).push(end) == "</s>"
