"""Initial weights from a smaller trained model: what it has learned, in a wider and deeper shape.

The shipped model (8 layers, two of them global, a KV head for each query head) becomes one whose
query heads share KV heads and that has four global layers. Where it can be, the new model computes
what the old one does:

- **Width** (Chen et al. 2016, Net2Net): some of the residual stream's dimensions stand twice, each
  with 1/sqrt(2) of its value, so that the lengths that LayerNorm measures stay the same but for the
  mean (0.02% of the energy). Noise sets the two apart.
- **Depth**: the old layers stand where `PLACES` says. The others begin as copies that add nothing.
- **Heads of global layers**: two new layers for an old one, which hold its KV heads between them;
  what a head writes is shared out among its copies.
- **KV heads of windowed layers** (Ainslie et al. 2023, GQA, section 2.1): the mean of the heads
  whose queries share the new one. Only here something is lost, and training mends it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from tokenizers import Tokenizer
from torch import Tensor

from .model import Mini
from .texts.data import new_tokenizer

NOISE = 0.1
"""Of copied queries and of inputs that stand twice, relative to their own size."""


@dataclass(frozen=True)
class Place:
    """What a new layer takes from an old one.

    heads: for each new query head the old one, and the share of what that wrote; kv: for each new
    KV head those old ones whose mean it is; feed_forward: the share of what the old layer's wrote.
    """

    layer: int
    heads: tuple[tuple[int, float], ...]
    kv: tuple[tuple[int, ...], ...]
    feed_forward: float = 1.0

    def silent(self) -> Place:
        """The same, adding nothing."""
        return Place(self.layer, tuple((h, 0.0) for h, _ in self.heads), self.kv, 0.0)


def _windowed(layer: int) -> Place:
    return Place(layer, ((0, 0.5), (0, 0.5), (1, 1.0), (2, 1.0)), ((0,), (1, 2)))


def _global(layer: int) -> tuple[Place, Place]:
    quarter = ((1, 0.25), (1, 0.25))
    return (
        Place(layer, ((0, 0.5), (0, 0.5), *quarter), ((0,), (1,))),
        Place(layer, ((2, 0.5), (2, 0.5), *quarter), ((2,), (1,)), 0.0),
    )


def _places() -> tuple[Place, ...]:
    """16 layers from 8: each half is three windowed layers, a global one, three that add nothing
    yet, and the global one's other heads."""
    found: list[Place] = []
    for first in (0, 4):
        windowed = [_windowed(first + i) for i in range(3)]
        one, other = _global(first + 3)
        found += [*windowed, one, *(w.silent() for w in windowed), other]
    return tuple(found)


PLACES = _places()


@dataclass(frozen=True)
class TrainedModel:
    """A trained model's weights by GGUF name and its tokenizer."""

    weights: Mapping[str, Tensor]
    tokenizer: Tokenizer


def read_trained(path: Path) -> TrainedModel:
    """A model that `lab.mini.export` wrote."""
    reader = gguf.GGUFReader(path)
    weights = {t.name: torch.tensor(dequantize(t.data, t.tensor_type)) for t in reader.tensors}
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = reader.fields["tokenizer.ggml.merges"].contents()
    tokenizer = new_tokenizer([""], 0)
    document = json.loads(tokenizer.to_str())
    document["model"]["vocab"] = {token: i for i, token in enumerate(tokens)}
    document["model"]["merges"] = list(merges)
    return TrainedModel(weights, Tokenizer.from_str(json.dumps(document)))


def grow(model: Mini, old: Mapping[str, Tensor]) -> None:
    """Writes a smaller model's weights [.., D'] into a new one's, of D >= D' dimensions."""
    c = model.config
    n_old = old["token_embd.weight"].shape[1]
    wide = _widening(n_old, c.n_embd)
    scale = c.n_embd / n_old
    with torch.no_grad():
        model.token_embd.weight.copy_(old["token_embd.weight"] @ wide.T * scale**0.5)
        model.output_norm.weight.copy_(old["output_norm.weight"] @ _copies(wide).T / scale)
        for block, place in zip(model.blk, PLACES, strict=True):
            found = _layer(old, place, c.head_dim)
            block.attn_norm.weight.copy_(found.pop("attn_norm") @ _copies(wide).T)
            for name, matrix in found.items():
                if name in ("attn_output", "ffn_down"):
                    wider = scale**0.5 * wide @ matrix
                else:
                    wider = _disturbed(matrix @ wide.T / scale**0.5)
                getattr(block, name).weight.copy_(wider)


def _layer(old: Mapping[str, Tensor], place: Place, E: int) -> dict[str, Tensor]:
    """A new layer's matrices, of the old width."""

    def heads(name: str) -> Tensor:
        matrix = old[f"blk.{place.layer}.{name}.weight"]
        return matrix.view(-1, E, matrix.shape[1])

    def plain(name: str) -> Tensor:
        return old[f"blk.{place.layer}.{name}.weight"]

    queries, keys, values = heads("attn_q"), heads("attn_k"), heads("attn_v")
    output = plain("attn_output").view(-1, queries.shape[0], E)
    return {
        "attn_norm": plain("attn_norm"),
        "attn_q": torch.cat([_disturbed(queries[h]) for h, _ in place.heads]),
        "attn_k": torch.cat([keys[list(kv)].mean(0) for kv in place.kv]),
        "attn_v": torch.cat([values[list(kv)].mean(0) for kv in place.kv]),
        "attn_output": torch.cat([share * output[:, h] for h, share in place.heads], 1),
        "ffn_gate": plain("ffn_gate"),
        "ffn_up": plain("ffn_up"),
        "ffn_down": place.feed_forward * plain("ffn_down"),
    }


def _copies(wide: Tensor) -> Tensor:
    """float32 [D, D'] of 0 and 1: which old dimension a new one repeats."""
    return (wide > 0).float()


def _widening(n_old: int, n_new: int) -> Tensor:
    """float32 [n_new, n_old] with orthonormal columns: x, some of whose dimensions stand twice."""
    twice = torch.randperm(n_old)[: n_new - n_old]
    wide = torch.cat([torch.eye(n_old), torch.eye(n_old)[twice]])
    result: Tensor = wide / wide.sum(0).sqrt()
    return result


def _disturbed(matrix: Tensor) -> Tensor:
    """The matrix with noise of NOISE times its own size."""
    return matrix + NOISE * matrix.std() * torch.randn_like(matrix)
