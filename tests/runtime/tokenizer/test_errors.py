"""What cannot be used is refused in words; nothing else escapes from damaged metadata."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvarn.runtime.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from kvarn.system.errors import KvarnError

from . import charsmaps

# Examples load or encode with whole vocabularies: on a busy machine some take long.
RELAXED = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


_GGML = "tokenizer.ggml."


@pytest.mark.parametrize(
    ("base", "changes", "words"),
    [
        ("bpe", {"model": "none"}, "no tokenizer"),
        ("bpe", {"model": "sentencefish"}, "unknown tokenizer model 'sentencefish'"),
        ("bpe", {"model": "replit"}, "'replit' is a unigram"),
        ("bpe", {"model": "rwkv"}, "'rwkv' is an RWKV"),
        ("bpe", {"model": 7}, "expected a name"),
        ("bpe", {"pre": "gpt-99"}, "unknown pre-tokenizer 'gpt-99'"),
        ("bpe", {"merges": None}, "no merges"),
        ("bpe", {"merges": [1, 2]}, "not a list of texts"),
        ("bpe", {"tokens": None}, "no tokens"),
        ("bpe", {"tokens": []}, "no tokens"),
        ("bpe", {"tokens": "abc"}, "not a list of texts"),
        ("bpe", {"tokens": ["a", "b", "a"]}, "'a' twice"),
        ("bpe", {"token_type": [1, 1]}, "2 entries"),
        ("bpe", {"bos_token_id": "one"}, "expected a token id"),
        ("bpe", {"add_bos_token": 3}, "expected true or false"),
        ("spm", {"scores": [1.0, 2.0]}, "2 entries"),
        ("spm", {"scores": ["x"]}, "not a list of numbers"),
        ("ugm", {"scores": None}, "a unigram vocabulary but no scores"),
        ("ugm", {"tokens": ["a", "b"]}, "no unknown token"),
        ("ugm", {"precompiled_charsmap": "x"}, "not a list of numbers"),
        ("ugm", {"precompiled_charsmap": [300]}, "not a list of bytes"),
        ("ugm", {"precompiled_charsmap": [8, 0, 0, 0]}, "has 4 bytes, and says that 8"),
        ("ugm", {"precompiled_charsmap": [3, 0, 0, 0, 0, 0, 0, 0, 0]}, "says that 3 of them"),
    ],
)
def test_refusals(base: str, changes: dict[str, Any], words: str, golden: dict[str, Any]) -> None:
    metadata = golden["vocabularies"][base] | {_GGML + k: v for k, v in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(TokenizerError, match=words) as caught:
        Tokenizer.from_metadata(metadata)
    assert "\n" not in str(caught.value)


MAP = bytearray(charsmaps.compiled(charsmaps.RULES))


@RELAXED
@given(
    st.lists(st.tuples(st.integers(0, len(MAP) - 1), st.integers(0, 255)), max_size=9),
    st.integers(0, len(MAP)),
    st.text(max_size=9),
)
def test_damaged_maps_of_characters(
    golden: dict[str, Any], changes: list[tuple[int, int]], length: int, text: str
) -> None:
    damaged = bytearray(MAP)
    for at, value in changes:
        damaged[at] = value
    charsmap = list(damaged[: length or None])
    metadata = golden["vocabularies"]["ugm"] | {_GGML + "precompiled_charsmap": charsmap}
    try:
        Tokenizer.from_metadata(metadata).encode("e\u0301 ffi " + text, special=True)
    except TokenizerError as error:
        assert "the file is damaged" in str(error)


def test_a_file_without_a_tokenizer() -> None:
    with pytest.raises(TokenizerError, match="no tokenizer"):
        Tokenizer.from_metadata({"general.architecture": "llama"})


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(KvarnError, match="no such file"):
        load_tokenizer(tmp_path / "nothing.gguf")


@pytest.mark.parametrize("token", [-1, 10**9])
def test_ids_outside_the_vocabulary(token: int, golden: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(golden["vocabularies"]["spm"])
    for use in (tokenizer.piece, tokenizer.attr, tokenizer.text_of, tokenizer.stream().push):
        with pytest.raises(TokenizerError, match=f"id {token} is outside the vocabulary"):
            use(token)
    with pytest.raises(TokenizerError, match="outside"):
        tokenizer.decode([0, token])


def test_special_ids_out_of_range_mean_none(golden: dict[str, Any]) -> None:
    changes = {_GGML + "bos_token_id": 10**6, _GGML + "add_bos_token": True}
    metadata = golden["vocabularies"]["bpe"] | changes
    assert Tokenizer.from_metadata(metadata).bos_id == 11  # llama.cpp's default for BPE
    del metadata[_GGML + "bos_token_id"]
    glm = Tokenizer.from_metadata(metadata | {_GGML + "pre": "glm4"})
    with pytest.raises(TokenizerError, match="asks for BOS"):
        glm.encode("a", bos=True)


def test_empty_tokens_get_names(golden: dict[str, Any]) -> None:
    metadata = {_GGML + "model": "llama", _GGML + "tokens": ["a", "", "b", ""]}
    tokenizer = Tokenizer.from_metadata(metadata)
    assert [tokenizer.text_of(i) for i in (1, 3)] == ["[EMPTY_1]", "[EMPTY_3]"]


def test_tokens_that_are_not_utf8() -> None:
    metadata = {_GGML + "model": "llama", _GGML + "tokens": ["<unk>", "a", b"\xff"]}
    tokenizer = Tokenizer.from_metadata(metadata)
    assert tokenizer.piece(2) == b"\xff" and tokenizer.decode([1, 2]) == "a\ufffd"


def test_numpy_arrays_and_ids(golden: dict[str, Any]) -> None:
    metadata = dict(golden["vocabularies"]["spm"])
    plain = Tokenizer.from_metadata(metadata)
    for key, kind in (("scores", np.float32), ("token_type", np.int32)):
        metadata[_GGML + key] = np.asarray(metadata[_GGML + key], kind)
    arrays = Tokenizer.from_metadata(metadata)
    ids = arrays.encode("Hello the world")
    assert ids == plain.encode("Hello the world")
    assert arrays.decode(np.asarray(ids)) == "Hello the world"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 400) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        *["model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id"],
        *["eos_token_id", "unknown_token_id", "add_bos_token", "add_space_prefix"],
        *["remove_extra_whitespaces", "normalizer.lowercase", "seperator_token_id"],
        *["precompiled_charsmap"],
    ]
)


@RELAXED
@given(st.sampled_from(["bpe", "spm", "bert", "plain", "ugm"]), st.dictionaries(KEYS, VALUES))
def test_damaged_metadata(golden: dict[str, Any], base: str, changes: dict[str, Any]) -> None:
    metadata = copy.copy(golden["vocabularies"][base])
    metadata.update({_GGML + key: value for key, value in changes.items()})
    try:
        tokenizer = Tokenizer.from_metadata(metadata)
        ids = tokenizer.encode("the ☃ Hello </s>", bos=True, special=True)
        tokenizer.decode(ids)
    except TokenizerError as error:
        assert "\n" not in str(error)
