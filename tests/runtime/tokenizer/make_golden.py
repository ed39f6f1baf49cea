"""Writes golden.json: ids that llama.cpp gives for the tiny vocabularies.

Run by hand from the folder of the repository, with llama-cpp-python installed:
`python -m tests.runtime.tokenizer.make_golden`.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from kvarn.runtime.tokenizer.pretokenizers import PRE_TOKENIZERS

from . import tiny_vocabs
from .llama_vocab import llama_vocab, write_vocab

HERE = Path(__file__).parent
_PRE = "tokenizer.ggml.pre"
_PLAIN = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
N_TEXTS = 14
N_PRE_TEXTS = 10
# Where rules that are alike differ: contractions, lines, spaces before digits, slashes.
DENSE = (
    "it'sx 'sx `+ !`a we'veit I'LLx a   123   4567\n\n\n  the  \r\n\r\n!!\n\n//\n/ 89012345 $5/x",
    "HTMLParserДомДОМ'S हिन्दी 你好abc世界 カタカナ한국어ไทย   \t\t <s>  x\n \n   ",
)


def variants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name → vocabulary and what is set beside it: the rules that files can change."""
    ggml = "tokenizer.ggml."
    return {
        "bpe": ("bpe", {_PRE: "gpt-2"}),
        "bpe-surrounded": ("bpe", {ggml + "add_bos_token": True, ggml + "add_eos_token": True}),
        "bpe-jina": ("bpe", {_PRE: "jina-v2-de"}),
        "bpe-modern": ("bpe", {_PRE: "modern-bert", "general.name": "My modern-bert"}),
        "gemma4": ("plain", {ggml + "model": "gemma4"}),
        "whitespace": ("plain", {ggml + "model": "whitespace", _PRE: "whitespace"}),
        "whitespace-lower": (
            "plain",
            {ggml + "model": "whitespace", _PRE: "whitespace", ggml + "normalizer.lowercase": True},
        ),
        "spm": ("spm", {}),
        "spm-bare": ("spm", {ggml + "add_space_prefix": False, ggml + "add_bos_token": False}),
        "spm-surrounded": ("spm", {ggml + "add_eos_token": True}),
        "spm-phi3": ("spm", {"general.name": "A Phi-3 model"}),
        "bert": ("bert", {}),
        "bert-cased": ("bert", {ggml + "normalizer.lowercase": False}),
        "ugm": ("ugm", {}),
        "ugm-joined": ("ugm-joined", {}),
        "ugm-spaces": ("ugm", {ggml + "remove_extra_whitespaces": False}),
        "ugm-joined-bare": (
            "ugm-joined",
            {
                ggml + "remove_extra_whitespaces": False,
                ggml + "add_space_prefix": False,
                ggml + "add_bos_token": False,
            },
        ),
        "bert-accents": ("bert", {ggml + "normalizer.strip_accents": False}),
    }


def texts() -> list[str]:
    """Fixed texts; bytes that are not UTF-8 as surrogate escapes."""
    rng = random.Random(11)
    made = [tiny_vocabs.random_text(rng) + tiny_vocabs.random_text(rng) for _ in range(N_TEXTS)]
    for i in (3, 6, 9, 12):
        made[i] = tiny_vocabs.damaged(made[i].encode(), rng).decode("utf-8", "surrogateescape")
    return ["", " ", *DENSE, *made]


def main() -> None:
    vocabularies = {
        "bpe": tiny_vocabs.byte_bpe(),
        "plain": tiny_vocabs.plain_bpe(),
        "spm": tiny_vocabs.sentencepiece(),
        "bert": tiny_vocabs.wordpiece(),
        "ugm": tiny_vocabs.unigram(),
        "ugm-joined": tiny_vocabs.unigram(joined=True),
    }
    all_texts = texts()
    golden: dict[str, Any] = {"vocabularies": vocabularies, "texts": all_texts}
    golden["variants"] = {}
    golden["pre"] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        for name, (base, changes) in variants().items():
            with llama_vocab(write_vocab(path, vocabularies[base] | changes)) as vocab:
                runs = [
                    [i, bos, special, vocab.encode(_raw(text), bos, special)]
                    for i, text in enumerate(all_texts)
                    for bos, special in ((False, False), (True, True))
                ]
                case = {"vocabulary": base, "changes": changes, "runs": runs, **vocab.facts()}
                golden["variants"][name] = case
        names: dict[str, list[str]] = {}
        for pre in PRE_TOKENIZERS:
            if pre == "whitespace":
                continue  # only together with the model of that name
            base = "plain" if pre in _PLAIN else "bpe"
            with llama_vocab(write_vocab(path, vocabularies[base] | {_PRE: pre})) as vocab:
                ids = [vocab.encode(_raw(t), True) for t in all_texts[2 : 2 + N_PRE_TEXTS]]
            names.setdefault(json.dumps([base, ids]), []).append(pre)
        for key, group in names.items():
            base, ids = json.loads(key)
            golden["pre"].append({"names": group, "vocabulary": base, "ids": ids})
    (HERE / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


if __name__ == "__main__":
    main()
