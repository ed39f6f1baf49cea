"""Values that are of the wrong kind, or larger than they need be, where a model is configured."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvarn.models import ModelConfig, ModelError
from kvarn.models.tensors import re_encoded_bytes, repacked_bytes
from kvarn.ops.types import QUANT_TYPES
from kvarn.runtime.gguf import GGUFError, open_gguf
from kvarn.runtime.gguf.layout import MAX_ARRAY_BYTES, MAX_ITEM_BYTES, MAX_TEXT_BYTES
from kvarn.runtime.loading import load as loading
from kvarn.runtime.tokenizer import TokenizerError
from kvarn.runtime.tokenizer.tokenizer import Tokenizer
from kvarn.system.errors import KvarnError
from kvarn.system.text import brief

from .gguf_bytes import ARRAY, STRING, U8, U32, build, info, pair

Write = Callable[[bytes], Path]
ARCH = pair("general.architecture", STRING, "llama")
LONG = (ARRAY, (STRING, ["x" * 60_000, *["ab"] * 20_000]))
WRONG: dict[str, tuple[int, Any]] = {
    "ragged": (ARRAY, (ARRAY, [(U32, [1]), (U32, [1, 2])])),
    "long texts": LONG,
    "texts": (ARRAY, (STRING, ["a", "a"])),
    "empty": (ARRAY, (STRING, [])),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_integer_is_no_array_of_anything_else(written: Write, name: str) -> None:
    with open_gguf(written(build([ARCH, pair("llama.block_count", *WRONG[name])]))) as file:
        tracemalloc.start()
        with pytest.raises(ModelError, match=r"block_count is .*expected one value") as refused:
            ModelConfig.from_metadata(file.metadata)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("key", ["scores", "token_type"])
def test_texts_never_become_one_wide_array(written: Write, key: str) -> None:
    tokens = pair("tokenizer.ggml.tokens", ARRAY, (STRING, ["a", "b"]))
    model = pair("tokenizer.ggml.model", STRING, "llama")
    with open_gguf(written(build([tokens, model, pair(f"tokenizer.ggml.{key}", *LONG)]))) as file:
        tracemalloc.start()
        with pytest.raises(TokenizerError, match=f"{key} is not a list of numbers"):
            Tokenizer.from_metadata(file.metadata)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ((ARRAY, (U32, [1, 2])), "made"),
        ((STRING, ""), "made"),
        ((STRING, "\x1b[31mred\n"), r"\x1b[31mred\n"),
        ((STRING, b"\xed\xa0\x80"), r"\udced\udca0\udc80"),
    ],
)
def test_a_name_is_one_line_of_text(written: Write, name: tuple[int, Any], expected: str) -> None:
    from kvarn.runtime.loading.model_info import ModelInfo

    with open_gguf(written(build([pair("general.name", *name)]))) as file:
        info = ModelInfo.__new__(ModelInfo)
        object.__setattr__(info, "file", file)  # all that a name needs
        assert info.name == expected


def test_what_is_decoded_has_limits(written: Write) -> None:
    long = pair("a", ARRAY, (STRING, ["x" * (MAX_ITEM_BYTES + 1)]))
    with pytest.raises(GGUFError, match="'a': found a string of 65,537 bytes in an array"):
        open_gguf(written(build([long])))
    long_array = build(
        [pair("a", ARRAY, (STRING, ["x" * MAX_ITEM_BYTES] * (MAX_ARRAY_BYTES >> 16)))]
    )
    with pytest.raises(GGUFError, match="'a': found over 50,331,648 bytes of arrays"):
        open_gguf(written(long_array))
    text = pair("a", STRING, "ä" * MAX_TEXT_BYTES)
    with open_gguf(written(build([text, pair("b", STRING, "b" * 2 * MAX_TEXT_BYTES)]))) as file:
        assert file.metadata.first("a", 3) == "äää"
        with pytest.raises(GGUFError, match="found a text of 2,097,152 bytes"):
            file.metadata["a"]
        assert len(file.metadata["b"]) == 2 * MAX_TEXT_BYTES


@pytest.mark.parametrize("kind", ["IQ1_S", "TQ2_0", "IQ2_XXS", "NVFP4"])
def test_types_that_are_encoded_anew_count_in_the_memory_check(
    written: Write, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    stored = QUANT_TYPES[kind]
    n_bytes = 64 * 512 // stored.block * stored.n_bytes
    path = written(build([ARCH], [info("t", [512, 64], stored.ggml_id)], bytes(n_bytes)))
    with open_gguf(path) as file:
        assert repacked_bytes(file.tensors) == 0
        needed = re_encoded_bytes(file.tensors)
        assert needed == 64 * 512 // 32 * 34
    monkeypatch.setattr(loading, "available_bytes", lambda: needed - 1)
    with pytest.raises(KvarnError, match=r"repacked into 34 KiB"):
        loading.load(path)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "5"),
        ("a\x1b\n", r"'a\x1b\n'"),
        (["x" * 10**6] * 10**6, "['xxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxx"),
        (None, "None"),
        (10**400, "1000"),
    ],
)
def test_a_value_is_shown_in_short(value: object, expected: str) -> None:
    assert brief(value).startswith(expected[:20])
    assert len(brief(value)) <= 60
    assert brief(value).isprintable()


def test_the_fingerprint_of_long_arrays_is_that_of_their_lists(
    written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvarn.runtime.loading import fingerprint

    values = pair("llama.a", ARRAY, (U8, list(range(100))))
    with open_gguf(written(build([ARCH, values, pair("llama.b", *LONG)]))) as file:
        whole = fingerprint.fingerprint(file)
        monkeypatch.setattr(fingerprint, "_ITEMS", 7)
        assert fingerprint.fingerprint(file) == whole
        parts = fingerprint._representation(file.metadata["llama.a"])
        assert "".join(parts) == str(list(range(100)))
