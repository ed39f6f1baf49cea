"""GGUF files of tiny models with one thing wrong, each known by a name."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...models import tiny_cases, tiny_models
from ...runtime.gguf import gguf_bytes
from ...runtime.gguf.gguf_bytes import ARRAY, BOOL, F32, F64, I32, I64, STRING, U8, U32, U64

ESCAPE = "\x1b]0;owned\x07\nkvarn: all is well"
# Values that a key may have in place of its own: (type, content).
VALUES: dict[str, tuple[int, Any]] = {
    "zero": (U32, 0),
    "one": (U32, 1),
    "3 million": (U32, 3_000_000),
    "2^31": (U32, 1 << 31),
    "2^32-1": (U32, (1 << 32) - 1),
    "2^63": (U64, 1 << 63),
    "2^64-1": (U64, (1 << 64) - 1),
    "-1": (I32, -1),
    "-2^63": (I64, -(1 << 63)),
    "nan": (F32, float("nan")),
    "inf": (F32, float("inf")),
    "-inf": (F32, float("-inf")),
    "subnormal": (F32, 1e-45),
    "subnormal 64": (F64, 5e-324),
    "1e308": (F64, 1e308),
    "true": (BOOL, 1),
    "bool 7": (BOOL, 7),
    "empty": (STRING, ""),
    "NUL": (STRING, "a\0b"),
    "escape": (STRING, ESCAPE),
    "not UTF-8": (STRING, b"\xff\xfe\xed\xa0\x80"),
    "long": (STRING, "\U0001f600" * 50_000),
    "no numbers": (ARRAY, (U32, [])),
    "no strings": (ARRAY, (STRING, [])),
    "numbers": (ARRAY, (U32, [1, 2])),
    "a number for each layer": (ARRAY, (U32, [0, 1, 2, 3, 5, 8, 1025])),
    "ones": (ARRAY, (U8, [1] * 100_000)),
    "nans": (ARRAY, (F32, [float("nan")] * 200)),
    "strings": (ARRAY, (STRING, ["a", ESCAPE])),
    "long strings": (ARRAY, (STRING, ["x" * 60_000, *"ab" * 2000])),
    "ragged": (ARRAY, (ARRAY, [(U32, [1]), (U32, [1, 2])])),
    "nested strings": (ARRAY, (ARRAY, [(STRING, ["a"]), (U8, [])])),
    "deep": (ARRAY, (ARRAY, [(ARRAY, [(ARRAY, [(U8, [1])])])])),
}
# Keys that the files do not have and that somebody reads.
ABSENT = (
    *("expert_count", "attention.causal", "attention.sliding_window", "vocab_size"),
    *("attention.sliding_window_pattern", "rope.scaling.type", "rope.scaling.factor"),
    *("rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.freq_base_swa"),
    *("attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "rope.scale_linear"),
    *("attention.recurrent_layers", "nextn_predict_layers", "embedding_scale", "residual_scale"),
    *("attention.scale", "rope.scaling.alpha", "rope.scaling.finetuned"),
    *("expert_group_count", "expert_group_used_count", "expert_weights_scale"),
    *("expert_gating_func", "leading_dense_block_count", "expert_shared_count"),
    *("attention.shared_kv_layers", "attention.key_length_swa", "rope.dimension_count_swa"),
    *("full_attention_interval", "embedding_length_per_layer_input", "moe_latent_size"),
)
GENERAL = (
    *("general.name", "general.type", "general.alignment", "split.no", "split.count"),
    *("split.tensors.count", "tokenizer.ggml.pre", "tokenizer.ggml.eot_token_id"),
    *("tokenizer.ggml.merges", "tokenizer.ggml.add_bos_token", "tokenizer.chat_template"),
    *("tokenizer.ggml.add_space_prefix", "kvarn.hash.version"),
)


@dataclass
class File:
    """What a file is made of; a mutant changes one thing of it."""

    pairs: list[tuple[str | bytes, int, Any]]
    tensors: list[tuple[str | bytes, list[int], int, int, bytes]]
    """Name, dims, type, change of the offset, data."""
    n_keys: int | None = None
    n_tensors: int | None = None

    def sections(self) -> tuple[list[bytes], list[bytes], bytes]:
        """Pairs, tensor infos, and data."""
        infos, data = [], b""
        for name, dims, kind, shift, values in self.tensors:
            infos.append(gguf_bytes.info(name, dims, kind, (len(data) + shift) % (1 << 64)))
            data += values + bytes(-len(values) % 32)
        return [gguf_bytes.pair(*one) for one in self.pairs], infos, data

    def written(self) -> bytes:
        """The whole file."""
        pairs, infos, data = self.sections()
        return gguf_bytes.build(
            pairs, infos, data, n_keys=self.n_keys, n_tensors=self.n_tensors
        )  # fmt: skip

    def put(self, key: str, kind: int, content: Any) -> None:
        """Give a key a value, wherever it had one."""
        self.pairs = [one for one in self.pairs if one[0] != key]
        self.pairs.append((key, kind, content))


@dataclass(frozen=True)
class Mutant:
    """A way to spoil a file; `runs`: whether the kernels of the sound model will do for it."""

    name: str
    change: Callable[[File], bytes | None]
    runs: bool = True


def base(name: str) -> File:
    """A tiny model; "bpe" is a llama with a byte-level vocabulary."""
    case = next(case for case in tiny_cases.CASES if case.name == name.removesuffix("/bpe"))
    pairs = [_pair(key, value) for key, value in tiny_models.metadata(case).items()]
    tensors = [
        (key, list(values.shape[::-1]), 0, 0, values.astype(np.float32).tobytes())
        for key, values in tiny_models.tensors(case, 1).items()
    ]
    file = File(pairs, tensors)
    if name.endswith("/bpe"):
        letters = [chr(33 + i) for i in range(case.n_vocab - 4)] + ["ab", "Ġ", "Ġa", "<|end|>"]
        file.put("tokenizer.ggml.model", STRING, "gpt2")
        file.put("tokenizer.ggml.pre", STRING, "qwen2")
        file.put("tokenizer.ggml.tokens", ARRAY, (STRING, letters))
        file.put("tokenizer.ggml.merges", ARRAY, (STRING, ["a b", "Ġ a"]))
        file.put("tokenizer.ggml.token_type", ARRAY, (I32, [1] * (case.n_vocab - 1) + [3]))
    return file


def _pair(key: str, value: Any) -> tuple[str, int, Any]:
    if isinstance(value, list):
        kinds = {str: STRING, float: F32, bool: BOOL, int: I32}
        return key, ARRAY, (kinds[type(value[0])], value)
    kinds = {str: STRING, float: F32, bool: BOOL, int: U32}
    return key, kinds[type(value)], value


def mutants(file: File) -> Iterator[Mutant]:
    """Every mutant of a file, always in the same order."""
    prefix = str(file.pairs[1][0]).split(".", 1)[0]
    keys = [str(key) for key, _, _ in file.pairs]
    for key in (*keys, *(f"{prefix}.{name}" for name in ABSENT), *GENERAL):
        for name, value in VALUES.items():
            yield Mutant(f"{key} = {name}", _putting(key, *value))
        yield Mutant(f"{key} missing", _removing(key))
        yield Mutant(f"{key} twice", _doubling(key))
    yield from _vocabularies(file)
    yield from _of_tensors(file)
    yield from _of_structure(file)


def spoiled(file: File, mutant: Mutant) -> bytes:
    """The bytes of a mutant of `file`, which stays as it is."""
    copy = deepcopy(file)
    return mutant.change(copy) or copy.written()


def _putting(key: str, kind: int, content: Any) -> Callable[[File], None]:
    return lambda file: file.put(key, kind, content)


def _removing(key: str) -> Callable[[File], None]:
    def change(file: File) -> None:
        file.pairs = [one for one in file.pairs if one[0] != key]

    return change


def _doubling(key: str) -> Callable[[File], None]:
    def change(file: File) -> None:
        file.pairs += [one for one in file.pairs if one[0] == key] or [(key, U8, 1), (key, U8, 1)]

    return change


def _vocabularies(file: File) -> Iterator[Mutant]:
    """Arrays of the tokenizer that do not fit each other."""
    found = {str(key): content for key, _, content in file.pairs}
    tokens = found["tokenizer.ggml.tokens"][1]
    n = len(tokens)
    lists: dict[str, tuple[str, int, list[Any]]] = {
        "one token less": ("tokens", STRING, tokens[:-1]),
        "one token more": ("tokens", STRING, [*tokens, "more"]),
        "a token twice": ("tokens", STRING, [*tokens[:-1], tokens[5]]),
        "empty tokens": ("tokens", STRING, [""] * n),
        "tokens of escapes": ("tokens", STRING, [f"\x1b[{i}m" for i in range(n)]),
        "tokens of NUL": ("tokens", STRING, [f"\0{i}" for i in range(n)]),
        "tokens not UTF-8": ("tokens", STRING, [bytes([200 + i % 50, i]) for i in range(n)]),
        "a token of 60 KB": ("tokens", STRING, ["\U0001f600" * 15_000, *tokens[1:]]),
        "scores of text": ("scores", STRING, ["x" * 60_000] * n),
        "too few scores": ("scores", F32, [0.0] * (n - 1)),
        "scores NaN": ("scores", F32, [float("nan")] * n),
        "scores inf": ("scores", F32, [float("-inf"), float("inf")] * n),
        "types beyond": ("token_type", I32, [99, -1, 7] * n),
        "types all special": ("token_type", I32, [3] * n),
        "types all bytes": ("token_type", I32, [6] * n),
        "types all user-defined": ("token_type", I32, [4] * n),
        "types of 64 bits": ("token_type", U64, [(1 << 64) - 1] * n),
        "merges without space": ("merges", STRING, ["ab", "", " ", "a  b", "a b c"]),
        "merges of absent parts": ("merges", STRING, ["zz qq", "ab zz", "\0 \0"]),
        "merges of numbers": ("merges", U8, [1, 2]),
        "merges twice": ("merges", STRING, ["a b"] * 1000),
    }
    for name, (key, kind, items) in lists.items():
        yield Mutant(name, _putting(f"tokenizer.ggml.{key}", ARRAY, (kind, items)))
    for role in ("bos", "eos", "unknown", "padding", "eot", "fim_pre"):
        for value in (n - 1, n, n + 1, (1 << 31) - 1):
            key = f"tokenizer.ggml.{role}_token_id"
            yield Mutant(f"{key} = {value}", _putting(key, U32, value))
    for model in ("gpt2", "bert", "t5", "whitespace", "gemma4", "none", ESCAPE):
        yield Mutant(f"model {model!r}", _putting("tokenizer.ggml.model", STRING, model))


def _of_tensors(file: File) -> Iterator[Mutant]:
    """Wrong names, dims, types, offsets and values."""

    def changed(index: int, **parts: Any) -> Callable[[File], None]:
        def change(copy: File) -> None:
            name, dims, kind, shift, data = copy.tensors[index]
            copy.tensors[index] = (
                parts.get("name", name),
                parts.get("dims", dims),
                parts.get("kind", kind),
                parts.get("shift", shift),
                parts.get("data", data),
            )

        return change

    names = [str(name) for name, *_ in file.tensors]
    others = ("blk.0.ssm", "blk.0.short", "blk.1.exp", "blk.1.ffn_gate_", "blk.1.ffn_down_")
    others += (
        "blk.1.attn_gate",
        "blk.1.attn_sinks",
        "blk.1.layer_output",
        "blk.1.inp_gate",
        "per_",
    )
    kinds = [i for i, name in enumerate(names) if name.startswith(others)]
    for index in sorted({0, 1, 3, *kinds, len(names) - 1}):
        name, dims, _, _, data = file.tensors[index]
        for new in (0, 1, dims[0] + 1, dims[0] - 1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1):
            yield Mutant(f"{name!s}: dims {new}", changed(index, dims=[new, *dims[1:]]))
            yield Mutant(f"{name!s}: last {new}", changed(index, dims=[*dims[:-1], new]))
        for new_dims in ([], dims * 2, dims * 3, dims[::-1], [*dims, 1], [1, *dims]):
            yield Mutant(f"{name!s}: dims {new_dims}", changed(index, dims=new_dims))
        for kind in range(1, 46):
            yield Mutant(f"{name!s}: type {kind}", changed(index, kind=kind), runs=False)
        for shift in (1, 32, -32, 1 << 31, 1 << 62, (1 << 64) - 32):
            yield Mutant(f"{name!s}: offset {shift}", changed(index, shift=shift))
        for other in (ESCAPE, b"\xff", "", "x" * 64, "blk.0.attn_norm.weight"):
            yield Mutant(f"{name!s}: name {other!r:.9}", changed(index, name=other))
        for value in (float("nan"), float("inf"), 3e38, 1e-45):
            values = np.full(len(data) // 4, value, np.float32).tobytes()
            yield Mutant(f"{name!s}: values {value}", changed(index, data=values))

        def without(copy: File, index: int = index) -> None:
            del copy.tensors[index]

        yield Mutant(f"{name!s}: missing", without)


def _of_structure(file: File) -> Iterator[Mutant]:
    """Wrong counts, and files cut at the border of every section."""

    def counted(**counts: int) -> Callable[[File], None]:
        def change(copy: File) -> None:
            vars(copy).update(counts)

        return change

    for name in ("n_keys", "n_tensors"):
        true = len(file.pairs if name == "n_keys" else file.tensors)
        for n in (0, 1, true - 1, true + 1, 1 << 16, 1 << 31, 1 << 63, (1 << 64) - 1):
            yield Mutant(f"{name} {n}", counted(**{name: n}))
    for version in (0, 1, 2, 4, 0x3000000):
        wrong = struct.pack("<I", version)
        yield Mutant(f"version {version}", lambda f, w=wrong: b"GGUF" + w + f.written()[8:])
    pairs, infos, data = file.sections()
    borders, at = [0, 4, 8, 16, 24], 24
    for part in (*pairs, *infos):
        at += len(part)
        borders.append(at)
    borders += [at + 7, len(file.written()) - len(data), len(file.written()) - 1]
    for border in borders:
        for near in (border - 1, border, border + 1):
            yield Mutant(f"cut at {near}", lambda f, n=near: f.written()[: max(0, n)])
