"""Vocabularies of tiktoken: tokens, kinds, merges, and the ids that tiktoken's own rule gives."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.hf import convert
from kvarn.convert.hf.vocabulary.tiktoken import FILE, PATTERNS
from kvarn.convert.quantize.mixes import mix_of
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.tokenizer import Tokenizer

from .stored_models import Stored
from .test_vocabulary import converted
from .vocabularies import CONTROL, NORMAL, UNUSED, save_settings

TEXT = (
    "the mill and the miller, the mill's wheel and the water under the wheel: été, Straße. Whose"
    " stream does not turn a stone, that stands by the river before dawn, will grind no more flour."
)
WORDS = [" the", " mill", " miller", " and", " wheel", " water", " under", "été", " été"]
BYTES, VOCAB, CODE_FILE = 256, 600, "tokenization_kimi.py"
ADDED = {"[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|tool_call_begin|>": 9}
"""Control tokens, by how far behind the ranks they stand."""
CODE = """
import nowhere

raise SystemExit("code that is never run")

class TikTokenTokenizer:
    pat_str = "|".join([{}])
"""


def ranks_of(n: int) -> dict[bytes, int]:
    """Single bytes in an order of their own, then what merging the text's words gives."""
    order = list(range(BYTES))
    random.Random(3).shuffle(order)
    ranks = {bytes([byte]): rank for rank, byte in enumerate(order)}
    words = [word.encode() for word in TEXT.replace(" ", "\0 ").split("\0") if word]
    parts = [[word[i : i + 1] for i in range(len(word))] for word in words]
    while len(ranks) < BYTES + n:
        counts: dict[bytes, int] = {}
        for word in parts:
            for a, b in pairwise(word):
                counts[a + b] = counts.get(a + b, 0) + 1
        token = max(counts, key=lambda pair: (counts[pair], pair))
        ranks.setdefault(token, len(ranks))
        for word in parts:
            i = 0
            while i + 1 < len(word):
                if word[i] + word[i + 1] == token:
                    word[i : i + 2] = [token]
                i += 1
    return ranks


def tiktoken_ids(word: str, ranks: dict[bytes, int]) -> list[int]:
    """tiktoken's rule: the pair of the lowest rank is merged, until no pair has one."""
    parts = [bytes([byte]) for byte in word.encode()]
    while pairs := [
        (ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks
    ]:
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [ranks[part] for part in parts]


def save(folder: Path, ranks: dict[bytes, int], pattern: str | None = None) -> None:
    """A folder as Kimi's."""
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
    (folder / FILE).write_text("\n".join(lines) + "\n")
    added = {str(len(ranks) + i): {"content": text, "special": i < 9} for text, i in ADDED.items()}
    save_settings(folder, added_tokens_decoder=added, bos_token="[BOS]", eos_token="[EOS]")
    (folder / "config.json").write_text(
        json.dumps({"bos_token_id": len(ranks), "eos_token_id": len(ranks) + 1})
    )
    texts = repr(next(iter(PATTERNS)) if pattern is None else pattern)
    (folder / CODE_FILE).write_text(CODE.format(texts))


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    return ranks_of(60)


@pytest.fixture
def keys(tmp_path: Path, ranks: dict[bytes, int]) -> dict[str, Any]:
    save(tmp_path, ranks)
    return converted(tmp_path, n_vocab=VOCAB)


def test_ids_are_tiktokens(keys: dict[str, Any], ranks: dict[bytes, int]) -> None:
    """Of words alone and beside each other; the tokenizer's code is read, not run."""
    tokenizer = Tokenizer.from_metadata({f"tokenizer.{key}": value for key, value in keys.items()})
    for word in [*WORDS, " thermal", " waterwheel", " Mühle", " ", "z"]:
        assert tokenizer.encode(word) == tiktoken_ids(word, ranks), word
        both = tokenizer.encode(word + " mill")
        assert both == tiktoken_ids(word, ranks) + tiktoken_ids(" mill", ranks) or word == " "
    assert any(len(tiktoken_ids(word, ranks)) == 1 for word in WORDS)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_a_converted_model_has_llama_cpps_ids(tmp_path: Path) -> None:
    """Of scripts, cases, spaces and control tokens; a folder of DeepseekV3ForCausalLM."""
    stored, ranks = Stored.read("deepseek3"), ranks_of(20)
    save(tmp_path, ranks)
    stored.write(tmp_path)
    convert(tmp_path, path := tmp_path / "model.gguf", mix_of("f32"))
    with open_gguf(path) as file:
        assert file.metadata["general.architecture"] == "deepseek2"
        tokenizer = Tokenizer.from_metadata(file.metadata)
    llama_cpp = pytest.importorskip("llama_cpp")
    oracle = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text in (
        TEXT,
        "HTTPServer 我想在apple工作1314天～\r\n\n  x",
        "I'M <|im_end|>[EOS]the",
        "  \n ",
    ):
        for special in (True, False):
            expected = oracle.tokenize(text.encode(), add_bos=True, special=special)
            assert tokenizer.encode(text, special=special) == expected, text


def test_the_keys_are_llama_cpps(keys: dict[str, Any], ranks: dict[bytes, int]) -> None:
    """All that follows the ranks is control or reserved; ids that nothing names are unused."""
    first, texts, kinds = len(ranks), keys["ggml.tokens"], list(keys["ggml.token_type"])
    assert (keys["ggml.model"], keys["ggml.pre"]) == ("gpt2", "kimi-k2")
    assert [texts[first + i] for i in (0, 1, 2, 3, 9)] == [
        "[BOS]", "[EOS]", "<|im_end|>", f"<|reserved_token_{first + 3}|>", "<|tool_call_begin|>"
    ]  # fmt: skip
    assert kinds == [NORMAL] * first + [CONTROL] * 258 + [UNUSED] * (VOCAB - first - 258)
    assert (keys["ggml.bos_token_id"], keys["ggml.eos_token_id"]) == (first, first + 1)
    assert len(keys["ggml.merges"]) == 60
    assert {"".join(merge.split(" ")) for merge in keys["ggml.merges"]} == set(texts[256:first])


def test_a_token_that_no_merges_give_has_none(tmp_path: Path, ranks: dict[bytes, int]) -> None:
    """None of its pairs is a token."""
    save(tmp_path, ranks | {b"qqq": len(ranks)})
    keys = converted(tmp_path, n_vocab=VOCAB)
    assert keys["ggml.tokens"][len(ranks)] == "qqq" and len(keys["ggml.merges"]) == 60


def test_another_way_to_cut_is_named_by_its_user(tmp_path: Path, ranks: dict[bytes, int]) -> None:
    save(tmp_path, ranks, r"\p{L}+|\s")
    with pytest.raises(ConvertError, match=r"no known pat_str in tokenization_kimi.py.*--pre NAME"):
        converted(tmp_path, n_vocab=VOCAB)
    assert converted(tmp_path, n_vocab=VOCAB, pre="gpt-2")["ggml.pre"] == "gpt-2"
    (tmp_path / CODE_FILE).unlink()
    with pytest.raises(ConvertError, match=r"no tokenization_\*.py beside it"):
        converted(tmp_path, n_vocab=VOCAB)


def _line(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / FILE).open("a") as file:
            file.write(text + "\n")

    return change


def _listed(token: int) -> Callable[[Path], None]:
    return lambda folder: save_settings(
        folder, added_tokens_decoder={str(token): {"content": "<x>", "special": True}}
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_line("qqq 316"), "line 317 is .qqq 316.* expected a token in base64 and its rank"),
        (_line("cXE= x"), "line 317 is .cXE= x"),
        (_line("cXE= 316 7"), "line 317 has 3 fields"),
        (_line("IA== 316"), "1 to 512 that no other line has"),
        (_line(f"{base64.b64encode(b'q' * 513).decode()} 316"), "a token of 513 bytes"),
        (_line("cXE= 320"), "317 tokens do not have the ranks from 0 on"),
        (_listed(5), "gives '<x>' the id 5, which tiktoken.model has"),
        (_listed(700), "beyond the 600 of config.json's vocab_size"),
        (lambda folder: (folder / CODE_FILE).write_text("pat_str = ("), "not valid Python"),
        (lambda folder: (folder / FILE).write_text("cXE= 0\n"), "no token is the byte 0"),
    ],
)  # fmt: skip
def test_what_makes_no_vocabulary_is_refused(
    tmp_path: Path, ranks: dict[bytes, int], change: Callable[[Path], None], message: str
) -> None:
    save(tmp_path, ranks)
    change(tmp_path)
    with pytest.raises(ConvertError, match=message) as raised:
        converted(tmp_path, n_vocab=VOCAB)
    assert "\n" not in str(raised.value)
