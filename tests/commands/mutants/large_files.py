"""GGUF files that ask for as much memory per byte as the format lets them."""

from __future__ import annotations

from collections.abc import Callable

from ...runtime.gguf.gguf_bytes import ARRAY, I32, STRING, U8, U32, U64, build, count, info, pair
from .gguf_mutants import File, base

FACE = "\U0001f600"


def _strings(texts: list[str]) -> tuple[int, list[str]]:
    return STRING, texts


def _vocabulary(tokens: list[str], kind: int = 1, name: str = "llama-mha") -> File:
    file = base(name)
    file.put("tokenizer.ggml.tokens", ARRAY, _strings(tokens))
    file.put("tokenizer.ggml.token_type", ARRAY, (I32, [kind] * len(tokens)))
    file.pairs = [one for one in file.pairs if one[0] != "tokenizer.ggml.scores"]
    return file


def _faces(n: int) -> list[str]:
    """`n` texts, none twice, each of four bytes per character in memory."""
    return [chr(0x10000 + i % 0xF0000) + "x" * (i // 0xF0000) for i in range(n)]


def _with(key: str, kind: int, content: object) -> bytes:
    file = base("llama-mha")
    file.put(key, kind, content)
    return file.written()


def _scores_of_text() -> bytes:
    return _with("tokenizer.ggml.scores", ARRAY, _strings(["x" * 60_000] + ["ab"] * 40_000))


def _pattern_of_text() -> bytes:
    file = base("gemma3")
    texts = _strings(["x" * 60_000] + ["ab"] * 40_000)
    file.put("gemma3.attention.sliding_window_pattern", ARRAY, texts)
    file.put("gemma3.attention.head_count", ARRAY, texts)
    return file.written()


def _many_merges() -> bytes:
    file = _vocabulary(_faces(1 << 19), name="llama-mha/bpe")
    file.put("tokenizer.ggml.merges", ARRAY, _strings([f"{t} a" for t in _faces(785_000)]))
    return file.written()


def _nested() -> bytes:
    rows = [(U8, [])] * 20_000
    return _with("llama.block_count", ARRAY, (ARRAY, rows))


def _keys() -> bytes:
    pairs = [pair(f"k{i}", STRING, "\x01" * 800) for i in range(16_000)]
    return build([*pairs, pair("k" * 65_000, U8, 1)])


def _tensors() -> bytes:
    infos = [info(f"{i:064}", [1], 0, 32 * i) for i in range(1 << 14)]
    return build([pair("general.architecture", STRING, "llama")], infos, bytes(32 << 14))


def _counts() -> bytes:
    file = base("llama-mha")
    file.put("llama.block_count", U32, 512)
    file.put("llama.vocab_size", U32, 1 << 19)
    return file.written()


LARGE: dict[str, Callable[[], bytes]] = {
    "scores of text": _scores_of_text,
    "patterns of text": _pattern_of_text,
    "many tokens": lambda: _vocabulary(_faces(1 << 19)).written(),
    "many special tokens": lambda: _vocabulary(_faces(1 << 19), 3).written(),
    "many empty tokens": lambda: _vocabulary([""] * (1 << 19)).written(),
    "too many tokens": lambda: _vocabulary([""] * (1 << 20)).written(),
    "many merges": _many_merges,
    "long tokens": lambda: _vocabulary([FACE * 16_000 + str(i) for i in range(700)]).written(),
    "long name": lambda: _with("general.name", STRING, "x" * (60 << 20)),
    "long name of faces": lambda: _with("general.name", STRING, FACE * (15 << 20)),
    "long template": lambda: _with("tokenizer.chat_template", STRING, "\x01" * (60 << 20)),
    "long types": lambda: _with("tokenizer.ggml.token_type", ARRAY, (U64, [1] * (47 << 17))),
    "nested arrays": _nested,
    "many keys": _keys,
    "many tensors": _tensors,
    "counts": _counts,
    "array beyond the file": lambda: _with("llama.block_count", U8, 1) + count(1 << 40),
}
