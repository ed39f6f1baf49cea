"""A model made by hand that copies: after N tokens it says what followed them earlier.

An induction head. Layer 0 has rope, and a head for each offset 1 … N that finds the token so many
places back by its position alone; layer 3 has no positions: its query holds the last N tokens, its
keys the N tokens before each, and its value is the token there. Layers 1 and 2 do nothing. So it
recalls whatever was said in the same words at any distance, and what it reads for that is known.

The residual stream, in spans of 8: the token · those 1 … N places back · the answer · ones.
"""

from pathlib import Path

import gguf
import numpy as np

from ...models.tiny_models import finish

SYMBOLS = "\n:abcdefghijklmn"
"""What it can tell apart: the codes of two are orthogonal or opposite."""
N = 4
SPAN = 8
HEAD = N * SPAN
D = 64
TOKEN, ANSWER, ONES = 0, N + 1, N + 2
LAYERS, HEADS, KV_HEADS = 4, 4, 2
ROPE_BASE = 10.0
SHARPNESS = 12.0
"""Scores: of the search by position, how much a neighbour of the place sought is below it (1.9
times this); of the search by tokens, what each adds that is the same."""
N_FF = 32
N_VOCAB = 256 + 2
F32 = np.float32


def write_copier(path: Path, template: str = "") -> None:
    """Write the GGUF file, of architecture smollm3; deterministic. template: a chat template."""
    tensors = {"token_embd.weight": _embeddings(), "output.weight": _output()}
    tensors["output_norm.weight"] = np.ones(D, F32)
    for i in range(LAYERS):
        tensors |= _idle_layer(i)
    tensors |= _offsets_layer() | _matching_layer()
    writer = gguf.GGUFWriter(path, "smollm3")
    _write_metadata(writer)
    if template:
        writer.add_chat_template(template)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor))
    finish(writer)


def _span(at: int) -> slice:
    return slice(at * SPAN, (at + 1) * SPAN)


def _codes() -> np.ndarray:
    """A row for each token: of a Hadamard matrix or its negative for the symbols, else zeros."""
    hadamard = np.ones((1, 1))
    while len(hadamard) < SPAN:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    codes = np.zeros((N_VOCAB, SPAN), F32)
    codes[[ord(symbol) for symbol in SYMBOLS]] = np.concatenate([hadamard, -hadamard])
    return codes


def _embeddings() -> np.ndarray:
    table = np.zeros((N_VOCAB, D), F32)
    table[:, _span(TOKEN)], table[:, _span(ONES)] = _codes(), 1
    return table


def _output() -> np.ndarray:
    table = np.zeros((N_VOCAB, D), F32)
    table[:, _span(ANSWER)] = _codes()
    return table


def _idle_layer(i: int) -> dict[str, np.ndarray]:
    shapes = {
        "attn_q": (HEADS * HEAD, D), "attn_k": (KV_HEADS * HEAD, D),
        "attn_v": (KV_HEADS * HEAD, D), "attn_output": (D, HEADS * HEAD),
        "ffn_gate": (N_FF, D), "ffn_up": (N_FF, D), "ffn_down": (D, N_FF),
    }  # fmt: skip
    tensors = {f"blk.{i}.{name}.weight": np.zeros(shape, F32) for name, shape in shapes.items()}
    for norm in ("attn_norm", "ffn_norm"):
        tensors[f"blk.{i}.{norm}.weight"] = np.ones(D, F32)
    return tensors


def _offsets_layer() -> dict[str, np.ndarray]:
    """Layer 0: score of place s from p for offset o is SHARPNESS · Σ_i cos(θ_i (p - s - o))."""
    rms = np.sqrt(2 * SPAN / D)  # of an embedding
    angles = ROPE_BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    size = np.sqrt(SHARPNESS * np.sqrt(HEAD)) * rms / SPAN
    q, k = np.zeros((HEADS, HEAD, D), F32), np.zeros((KV_HEADS, HEAD, D), F32)
    v, out = np.zeros((KV_HEADS, HEAD, D), F32), np.zeros((D, HEADS, HEAD), F32)
    k[:, 0::2, _span(ONES)] = size
    v[:, :SPAN, _span(TOKEN)] = np.eye(SPAN) * rms
    for head in range(N):
        turned = (head + 1) * angles
        q[head, 0::2, _span(ONES)] = (size * np.cos(turned))[:, None]
        q[head, 1::2, _span(ONES)] = (-size * np.sin(turned))[:, None]
        out[_span(1 + head), head, :SPAN] = np.eye(SPAN)
    return _attention(0, q, k, v, out)


def _matching_layer() -> dict[str, np.ndarray]:
    """Layer 3, its first head: query tokens p, p - 1, … against those before s; value token s."""
    rms = np.sqrt((N + 2) * SPAN / D)
    size = np.sqrt(SHARPNESS / SPAN * np.sqrt(HEAD)) * rms
    q, k = np.zeros((HEADS, HEAD, D), F32), np.zeros((KV_HEADS, HEAD, D), F32)
    v, out = np.zeros((KV_HEADS, HEAD, D), F32), np.zeros((D, HEADS, HEAD), F32)
    for i in range(N):
        q[0, _span(i), _span(i)] = np.eye(SPAN) * size
        k[0, _span(i), _span(1 + i)] = np.eye(SPAN) * size
    v[0, :SPAN, _span(TOKEN)] = np.eye(SPAN)
    out[_span(ANSWER), 0, :SPAN] = np.eye(SPAN)
    return _attention(LAYERS - 1, q, k, v, out)


def _attention(i: int, *tensors: np.ndarray) -> dict[str, np.ndarray]:
    q, k, v, out = tensors
    return {
        f"blk.{i}.attn_q.weight": q.reshape(-1, D),
        f"blk.{i}.attn_k.weight": k.reshape(-1, D),
        f"blk.{i}.attn_v.weight": v.reshape(-1, D),
        f"blk.{i}.attn_output.weight": out.reshape(D, -1),
    }


def _write_metadata(writer: gguf.GGUFWriter) -> None:
    writer.add_name("copier")
    writer.add_context_length(32_768)
    writer.add_embedding_length(D)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(N_VOCAB)
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + i) for i in range(256))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    letters = [chr(b) if b in plain else next(others) for b in range(256)]
    writer.add_token_list([*letters, "~~", "<bos>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["~ ~"])  # there must be one
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(257)
