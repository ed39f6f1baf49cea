"""A transformer with a KV cache in plain NumPy: the first file of kvarn to read.

    python examples/minimal.py "The mill stood by the river"

It continues a text with kvarn's default model. It chooses the tokens that kvarn chooses, slowly.
`models/passes/transformer.py` takes the same steps for every architecture, with compiled kernels.

The letters of the shapes, here and everywhere in kvarn:

    T  new tokens                   H  query heads             D  numbers that stand for a token
    S  tokens in the cache          J  KV heads                F  inner size of the feed-forward
    V  tokens of the vocabulary     E  numbers in a head
"""

import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kvarn.ops.reference.linear import linear_reference
from kvarn.ops.reference.pointwise import layer_norm_reference, swiglu_reference
from kvarn.ops.reference.quants import dequantise
from kvarn.runtime.gguf import GGUFFile, open_gguf
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.tokenizer import Tokenizer

Array = NDArray[np.floating]


class Model:
    """The weights of a model of the architecture cohere2, and its KV cache."""

    def __init__(self, file: GGUFFile) -> None:
        # A GGUF file holds metadata (sizes, the vocabulary) and tensors (the weights).
        self.tensors = file.tensors
        self.n_layers = file.get("cohere2.block_count", int)
        self.n_heads = file.get("cohere2.attention.head_count", int)  # H
        self.n_kv_heads = file.get("cohere2.attention.head_count_kv", int)  # J
        self.head_dim = file.get("cohere2.attention.key_length", int)  # E
        self.window = file.get("cohere2.attention.sliding_window", int)
        self.rope_base = file.get("cohere2.rope.freq_base", float, 10_000.0)
        self.norm_eps = file.get("cohere2.attention.layer_norm_epsilon", float)
        self.logit_scale = file.get("cohere2.logit_scale", float)

        # The KV cache. Later tokens read the keys and values of earlier ones, and these never
        # change. So they are computed once and kept: for each layer (S, J, E), in 16-bit floats.
        empty = np.empty((0, self.n_kv_heads, self.head_dim), np.float16)
        self.keys: list[Array] = [empty] * self.n_layers
        self.values: list[Array] = [empty] * self.n_layers

    def forward(self, ids: list[int]) -> Array:
        """Read T new tokens. Returns the logits (V,) for the token after them."""
        # A token starts as its row of a table.
        table = self.tensors["token_embd.weight"]  # (V, D)
        x: Array = dequantise(table.type, table.data[ids])  # (T, D)

        # A layer adds two things to x: what attention fetches from other tokens, and what the
        # feed-forward makes of each token alone. (In most architectures the second reads the sum
        # of x and the first. Here both read the same input.)
        for layer in range(self.n_layers):
            normed = self.norm(x, f"blk.{layer}.attn_norm")
            x = x + self.attention(layer, normed) + self.feed_forward(layer, normed)

        # A logit says how well a token fits next: the product of its row of the table and x.
        last = self.norm(x[-1:], "output_norm")  # (1, D)
        logits: Array = self.linear(last, "token_embd")[0] * self.logit_scale  # (V,)
        return logits

    def attention(self, layer: int, x: Array) -> Array:
        """x (T, D) -> (T, D): for each new token, a weighted mean of values in the cache."""
        n_new, start = len(x), len(self.keys[layer])

        # Query: what a token looks for. Key: what it is found by. Value: what it then gives.
        q = self.linear(x, f"blk.{layer}.attn_q").reshape(n_new, self.n_heads, -1)  # (T, H, E)
        k = self.linear(x, f"blk.{layer}.attn_k").reshape(n_new, self.n_kv_heads, -1)  # (T, J, E)
        v = self.linear(x, f"blk.{layer}.attn_v").reshape(n_new, self.n_kv_heads, -1)  # (T, J, E)

        # In three of four layers a token sees the last `window` tokens, and rotation tells it how
        # far away they are. In every fourth layer it sees all tokens, without rotation.
        windowed = layer % 4 < 3
        if windowed:
            q, k = self.rope(q, start), self.rope(k, start)

        # Append to the cache. From here on, k and v are those of all S tokens: (S, J, E).
        k = self.keys[layer] = np.concatenate([self.keys[layer], k.astype(np.float16)])
        v = self.values[layer] = np.concatenate([self.values[layer], v.astype(np.float16)])

        # Grouped-query attention: G = H / J query heads share a KV head, so the cache is G times
        # smaller. Query head h reads KV head h // G.
        group = self.n_heads // self.n_kv_heads
        k, v = (np.repeat(rows.astype(np.float64), group, axis=1) for rows in (k, v))  # (S, H, E)

        # The score of two tokens is the product of query and key. No token sees a later one.
        scores = np.einsum("the,she->hts", q, k) / np.sqrt(self.head_dim)  # (H, T, S)
        query_position, key_position = start + np.arange(n_new)[:, None], np.arange(len(k))
        visible = key_position <= query_position  # (T, S)
        if windowed:
            visible &= key_position > query_position - self.window
        scores = np.where(visible, scores, -np.inf)

        # Softmax turns scores into weights: positive, with a sum of 1. They weigh the values.
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)  # (H, T, S)
        mean = np.einsum("hts,she->the", weights, v)  # (T, H, E)
        return self.linear(mean.reshape(n_new, -1), f"blk.{layer}.attn_output")

    def feed_forward(self, layer: int, x: Array) -> Array:
        """x (T, D) -> (T, D): each token alone, by way of F numbers, which a gate scales."""
        gate = self.linear(x, f"blk.{layer}.ffn_gate")  # (T, F)
        up = self.linear(x, f"blk.{layer}.ffn_up")  # (T, F)
        return self.linear(swiglu_reference(gate, up), f"blk.{layer}.ffn_down")

    def rope(self, x: Array, start: int) -> Array:
        """Rotate pairs of x (T, heads, E) by angles that grow with the position. Products
        of rotated vectors then depend on the distance between their positions."""
        frequencies = self.rope_base ** (-np.arange(0, self.head_dim, 2) / self.head_dim)  # (E/2,)
        angles = (start + np.arange(len(x)))[:, None, None] * frequencies  # (T, 1, E/2)
        rotated = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)  # (T, heads, E/2)
        return np.stack([rotated.real, rotated.imag], axis=-1).reshape(x.shape)

    def norm(self, x: Array, name: str) -> Array:
        """Shift and scale each row of x (T, D) to mean 0 and variance 1; multiply by weights."""
        weight = self.tensors[f"{name}.weight"]
        return layer_norm_reference(x, dequantise(weight.type, weight.data), None, self.norm_eps)

    def linear(self, x: Array, name: str) -> Array:
        """x W^T. W stays as it is in the file: 8-bit integers, and a scale for each 32 of them."""
        weight = self.tensors[f"{name}.weight"]
        return linear_reference(x.astype(np.float32), weight.type, weight.data)


def generate(model: Model, prompt: list[int], n_tokens: int) -> Iterator[int]:
    """Greedy decoding: the token with the largest logit follows."""
    ids = prompt  # prefill: the model reads the whole prompt at once
    for _ in range(n_tokens):
        token = int(model.forward(ids).argmax())
        yield token
        ids = [token]  # decode: then one token at a time, as the cache holds all the others


if __name__ == "__main__":
    with open_gguf(default_model_path()) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
        prompt = tokenizer.encode(" ".join(sys.argv[1:]) or "It was a cold morning, and", bos=True)
        stream = tokenizer.stream()  # a character may take several tokens
        for token in generate(Model(file), prompt, n_tokens=48):
            print(stream.push(token), end="", flush=True)
        print()
