"""tokenizer.json made to harm the library that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...convert import vocabularies

Save = Callable[[Path], None]


def small_json() -> dict[str, Any]:
    """tokenizer.json of a byte-level vocabulary."""
    alphabet = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    tokens = [*alphabet, *(chr(256 + i) for i in range(256 - len(alphabet)))]
    tokens += ["ab", "<s>", "</s>"]
    kinds = [1] * (len(tokens) - 2) + [3, 3]
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["a b"],
    }
    saved = vocabularies.tokenizer_json(metadata, vocabularies.PATTERNS["qwen2"], "<s>")
    return {**saved, "padding": None, "truncation": None}


def saving(name: str, value: Any) -> Save:
    """Write a file of a folder: JSON, in a model card between the marks of YAML."""

    def save(folder: Path) -> None:
        text = json.dumps(value)
        (folder / name).write_text(f"---\n{text}\n---\n" if name == "README.md" else text)

    return save


def hostile_tokenizers() -> Iterator[tuple[str, str, Save]]:
    """What made the tokenizers library abort, loop, or take all memory."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": " " * 1000}
    nested: dict[str, Any] = {"type": "NFC"}
    for _ in range(100):
        nested = {"type": "Sequence", "normalizers": [nested]}
    padding = {
        **{"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None},
        **{"pad_id": 0, "pad_type_id": 0, "pad_token": "x"},
    }
    regex = {"type": "Split", "pattern": {"Regex": "(.*)*(.*)*(.*)*(.*)*x"}, "behavior": "Isolated"}
    empty = {"type": "Replace", "pattern": {"Regex": ""}, "content": "xxxxxxxx"}
    parts: dict[str, dict[str, Any]] = {
        "Precompiled": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        "Precompiled long": {
            "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////" * 1000}
        },
        "padding": {"padding": padding},
        "truncation": {
            "truncation": {
                **{"direction": "Right", "max_length": 0, "strategy": "LongestFirst"},
                "stride": 5,
            }
        },
        "bomb": {"normalizer": {"type": "Sequence", "normalizers": [replace] * 4}},
        "empty bomb": {"normalizer": {"type": "Sequence", "normalizers": [empty] * 12}},
        "nested": {"normalizer": nested},
        "regex": {"pre_tokenizer": {**regex, "invert": False}},
        "prepend": {"normalizer": {"type": "Prepend", "prepend": "x" * 1_000_000}},
        "metaspace": {"pre_tokenizer": {"type": "Metaspace", "replacement": "xx"}},
        "digits": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    }
    for name, changes in parts.items():
        yield f"hostile {name}", "bpe", saving("tokenizer.json", {**small_json(), **changes})
    for merges in (["ab"], ["a b c"], [""], [["a"]], [["a", "b"], "a b"], [["zz", "qq"]], ["a \0"]):
        saved = small_json()
        saved["model"]["merges"] = merges
        yield f"merges {merges}", "bpe", saving("tokenizer.json", saved)
        pieces = vocabularies.sentencepiece_json(vocabularies.small_pieces(296))
        pieces["model"]["merges"] = merges
        yield f"merges of pieces {merges}", "pieces", saving("tokenizer.json", pieces)
