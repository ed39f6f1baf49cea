"""Writes GGUF files with random weights and the shapes of real models, for benchmarks.

    python -m lab.peers.model q4_0 FOLDER      → FOLDER/1b-q4_0.gguf

Weights are random blocks whose values have a standard deviation of 0.02: activations stay in range.
The vocabulary is synthetic, byte-level BPE with as many tokens and merges as Llama 3's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as GGMLType

from kvarn.ops.arrays import U8
from kvarn.runtime.home import home, make_folder
from kvarn.system.files import new_file


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama model with tied output; n_ff: of one expert, where it has experts."""

    n_layers: int = 16
    n_embd: int = 2048
    n_heads: int = 32
    n_kv_heads: int = 8
    head_dim: int = 64
    n_ff: int = 8192
    n_vocab: int = 128_256
    n_experts: int = 0
    n_used: int = 0
    n_ctx: int = 131_072


LLAMA_1B = Shape()
EXPERTS_8B = Shape(n_ff=768, n_experts=96, n_used=8)
"""8B, of which a token reads 1B."""

MIXES = {
    "f16": (GGMLType.F16, GGMLType.F16),
    "bf16": (GGMLType.BF16, GGMLType.BF16),
    "q8_0": (GGMLType.Q8_0, GGMLType.Q8_0),
    "q4_0": (GGMLType.Q4_0, GGMLType.Q6_K),
    "q4_k_m": (GGMLType.Q4_K, GGMLType.Q6_K),
} | {
    name.lower(): (GGMLType[name], GGMLType.Q6_K)
    for name in (
        "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
    )
}  # fmt: skip
"""File type → types of most matrices and of the tied embedding, as llama.cpp chooses them.

q2_k … q6_k have matrices of one type alone, so that a comparison is one of that type.
"""


def kept_model(
    folder: Path | None, mix: str, n_layers: int = LLAMA_1B.n_layers, experts: bool = False
) -> Path:
    """The file of a 1B-shaped model, or of one with experts, in a folder (default: in kvarn's
    home), written on first use; `make peers` and `make longctx` share it."""
    folder = folder or home() / "peers"
    make_folder(folder)
    fewer = "" if n_layers == LLAMA_1B.n_layers else f"-{n_layers}-layers"
    shape, size = (EXPERTS_8B, "8b-experts") if experts else (LLAMA_1B, "1b")
    path = folder / f"{size}-{mix}{fewer}.gguf"
    if not path.exists():
        print(f"writing {path}", file=sys.stderr)
        with new_file(path) as part:
            write_model(part, mix, replace(shape, n_layers=n_layers))
    return path


def write_model(
    path: Path,
    mix: str,
    shape: Shape = LLAMA_1B,
    add_keys: Callable[[gguf.GGUFWriter], object] = lambda _: None,
) -> None:
    """Write the GGUF file, always the same for the same arguments; takes some seconds per GB."""
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    _write_metadata(writer, mix, shape)
    _write_vocabulary(writer, shape.n_vocab)
    add_keys(writer)
    pools = {kind: _pool(kind) for kind in {*MIXES[mix], GGMLType.Q6_K}}
    for name, rows, cols, kind in _matrices(mix, shape):
        matrix = pools[kind].matrix(rows, cols)
        if "_exps" in name:  # all alike: only the file takes memory for each
            matrix = np.broadcast_to(matrix, (shape.n_experts, *matrix.shape))
        writer.add_tensor(name, matrix, raw_dtype=kind)
    for i in range(shape.n_layers if shape.n_experts else 0):
        router = np.random.default_rng(i).normal(0, 0.02, (shape.n_experts, shape.n_embd))
        writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", router.astype(np.float32))
    for name in _norms(shape):
        writer.add_tensor(name, np.ones(shape.n_embd, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: gguf.GGUFWriter, mix: str, shape: Shape) -> None:
    writer.add_name(f"random {mix}")
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500_000.0)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(shape.n_vocab)
    if shape.n_experts:
        writer.add_expert_count(shape.n_experts)
        writer.add_expert_used_count(shape.n_used)


def _write_vocabulary(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """256 bytes, then pairs of a known token and a byte, shortest first, then special tokens."""
    alphabet = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
    alphabet += [chr(256 + i) for i in range(256 - len(alphabet))]
    n_special = 256 if n_vocab > 1024 else 2
    tokens, merges, at = list(alphabet), [], 0
    while len(tokens) < n_vocab - n_special:
        first = tokens[at]
        for second in alphabet[: n_vocab - n_special - len(tokens)]:
            tokens.append(first + second)
            merges.append(f"{first} {second}")
        at += 1
    normal = len(tokens)
    tokens += [f"<|special_{i}|>" for i in range(n_special)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * normal + [gguf.TokenType.CONTROL] * n_special)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(normal)
    writer.add_eos_token_id(normal + 1)


def _norms(shape: Shape) -> Iterator[str]:
    yield "output_norm.weight"
    for i in range(shape.n_layers):
        yield f"blk.{i}.attn_norm.weight"
        yield f"blk.{i}.ffn_norm.weight"


def _matrices(mix: str, shape: Shape) -> Iterator[tuple[str, int, int, GGMLType]]:
    most, embedding = MIXES[mix]
    q, kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    yield "token_embd.weight", shape.n_vocab, shape.n_embd, embedding
    for i in range(shape.n_layers):
        # llama.cpp's Q4_K_M keeps these two finer in the first and last eighth and every third.
        fine = mix == "q4_k_m" and _keeps_more_bits(i, shape.n_layers)
        better = GGMLType.Q6_K if fine else most
        yield f"blk.{i}.attn_q.weight", q, shape.n_embd, most
        yield f"blk.{i}.attn_k.weight", kv, shape.n_embd, most
        yield f"blk.{i}.attn_v.weight", kv, shape.n_embd, better
        yield f"blk.{i}.attn_output.weight", shape.n_embd, q, most
        stacked = "_exps" if shape.n_experts else ""
        yield f"blk.{i}.ffn_gate{stacked}.weight", shape.n_ff, shape.n_embd, most
        yield f"blk.{i}.ffn_up{stacked}.weight", shape.n_ff, shape.n_embd, most
        yield f"blk.{i}.ffn_down{stacked}.weight", shape.n_embd, shape.n_ff, better


def _keeps_more_bits(layer: int, n_layers: int) -> bool:
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


@dataclass(frozen=True)
class _Pool:
    """Random blocks of one type, to cut matrices from."""

    blocks: U8
    n_cols: int
    n_bytes: int

    def matrix(self, rows: int, cols: int) -> U8:
        return np.resize(self.blocks, (rows, cols // self.n_cols * self.n_bytes))


def _pool(kind: GGMLType, n_blocks: int = 1 << 16) -> _Pool:
    """Random valid blocks: random bytes with scales that give a standard deviation of 0.02."""
    rng = np.random.default_rng(int(kind))
    n_cols, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    if kind == GGMLType.F16:
        blocks = (rng.standard_normal(n_blocks) * 0.02).astype(np.float16).view(np.uint8)
    elif kind == GGMLType.BF16:  # the upper halves of float32
        floats = (rng.standard_normal(n_blocks) * 0.02).astype(np.float32)
        blocks = floats.view(np.uint16)[1::2].copy().view(np.uint8)
    else:
        blocks = rng.integers(0, 256, (n_blocks, n_bytes), dtype=np.uint8)
        _set_scales(blocks, kind)
    return _Pool(blocks, n_cols, n_bytes)


_SCALES: dict[GGMLType, dict[int, float]] = {
    GGMLType.Q8_0: {0: 0.02 / 74},  # d · int8
    GGMLType.Q4_0: {0: 0.02 / 4.6},  # d · (nibble − 8)
    GGMLType.Q4_1: {0: 0.02 / 4.6, 2: -7.5 * 0.02 / 4.6},  # d · nibble + m
    GGMLType.Q5_0: {0: 0.02 / 9.2},  # d · (5 bits − 16)
    GGMLType.Q5_1: {0: 0.02 / 9.2, 2: -15.5 * 0.02 / 9.2},  # d · 5 bits + m
    GGMLType.IQ4_NL: {0: 0.02 / 73},  # d · one of 16 int8
    # d · scale · bits − dmin · min; scales and mins up to 15 (Q2_K) or 63
    GGMLType.Q2_K: {80: 0.02 / 13.9, 82: 1.5 * 0.02 / 13.9},
    GGMLType.Q4_K: {0: 0.02 / 262, 2: 0.02 * 7.5 / 262},
    GGMLType.Q5_K: {0: 0.02 / 533, 2: 0.02 * 15.5 / 533},
    GGMLType.Q3_K: {108: 0.02 / (2.35 * 18.5)},  # d · (6 bits − 32) · (3 bits − 4)
    GGMLType.IQ4_XS: {0: 0.02 / (18.5 * 73)},  # d · (6 bits − 32) · one of 16 int8
    GGMLType.Q6_K: {208: 0.02 / (18.5 * 74)},  # d · int8 scale · (6 bits − 32)
}
"""Byte offset in a block → the f16 number there."""


def _set_scales(blocks: U8, kind: GGMLType) -> None:
    if kind == GGMLType.MXFP4:  # 2^(exponent − 128) · one of 16 integers
        blocks[:, 0] = 120
        return
    for at, value in _SCALES[kind].items():
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)
    if kind == GGMLType.Q8_0:
        blocks[:, 2:][blocks[:, 2:] == 128] = 127


if __name__ == "__main__":
    print(kept_model(Path(sys.argv[2]), sys.argv[1]))
