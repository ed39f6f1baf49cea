"""Encoders, which map queries and keys to signatures: random directions or learned networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ....models.config import ModelConfig
from ....ops.arrays import F32, I32, U64
from ....ops.attention.layout import SEGMENT
from ....ops.cpu import CPU
from ....ops.device import Places
from ....ops.select import Network, hyperplanes
from ...store import Column
from ..base import LayerView


@dataclass(frozen=True)
class LayerNetworks:
    """Networks of one layer, for vectors after rope: one for all heads, or one per head."""

    queries: tuple[Network, ...]
    keys: tuple[Network, ...]

    def sign_queries(self, q: F32, out: U64) -> None:
        """Signatures of q float32 (H, E), one query head each, into out uint64 (H,)."""
        n = len(q) // len(self.queries)
        for i, network in enumerate(self.queries):
            CPU.select.encode_rows(network, q[i * n : (i + 1) * n], out[i * n : (i + 1) * n])

    def sign_rows(self, q: F32, out: U64) -> None:
        """Signatures of q float32 (T, H, E) into out uint64 (T, H)."""
        n = q.shape[1] // len(self.queries)
        for i, network in enumerate(self.queries):
            CPU.select.encode_heads(network, q, i * n, n, out)

    def for_centred_keys(self, centre: F32) -> LayerNetworks:
        """Networks that give keys stored without their `centre` (J, E) the signatures of the whole
        keys: W (k - c) + (b + W c) = W k + b."""
        n = len(centre) // len(self.keys)
        keys = tuple(_for_centred(self.keys[head // n], c) for head, c in enumerate(centre))
        return LayerNetworks(self.queries, keys)

    def sign_keys(self, layer: LayerView, column: Column, first: int, stop: int) -> None:
        """Signatures of the layer's keys first … stop - 1, as stored, into the column."""
        layout = layer.store.layout
        for network, heads, keys, items in self._parts(layer, column):
            n_heads = heads.stop - heads.start
            CPU.select.encode_keys(network, keys, layout, n_heads, items, first, stop)

    def sign_token(
        self, layer: LayerView, column: Column, span: list[int], q: F32, out: U64
    ) -> None:
        """`sign_keys` of the token of that span, and `sign_queries` of its queries."""
        self.sign_keys(layer, column, *span)
        self.sign_queries(q, out)

    def sign_slots(self, layer: LayerView, column: Column, slots: I32, n_tokens: int) -> None:
        """The same for the keys in the slots slots[:, :n_tokens], int32 (J, …)."""
        layout = layer.store.layout
        for network, heads, keys, items in self._parts(layer, column):
            CPU.select.encode_slots(network, keys, layout, items, slots[heads], n_tokens)

    def _parts(
        self, layer: LayerView, column: Column
    ) -> Iterator[tuple[Network, slice, Places, Places]]:
        """Each network for keys, its KV heads, and the places of their keys and items."""
        store, keys = layer.store, layer.store.segments(layer.index)
        items = column.segments(layer.index)
        n = store.n_kv_heads // len(self.keys)
        for i, network in enumerate(self.keys):
            head = i * n
            yield (
                network,
                slice(head, head + n),
                keys + head * store.layout.head_bytes,
                items + head * SEGMENT * column.item_bytes,
            )


class Encoder(ABC):
    """Networks for each layer without a sliding window."""

    name: str
    """The name of the column of signatures, which no other encoder has."""
    bits: int

    @abstractmethod
    def networks(self, config: ModelConfig, layer: int) -> LayerNetworks:
        """The networks of one layer."""


@dataclass(frozen=True)
class SimHash(Encoder):
    """Signs of projections onto random directions, the same for queries and keys.

    The directions of layer l are the normals of `hyperplanes` with the seed (seed, l), drawn by
    element. HashAttention's LSH baseline adds a coordinate to keys, which makes angles follow q·k
    (Neyshabur and Srebro 2015); this has none (docs/guides/methods.md).
    """

    bits: int
    seed: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"simhash-{self.bits}-{self.seed}"

    def planes(self, head_dim: int, layer: int) -> F32:
        """The directions of one layer, float32 (E, bits)."""
        return hyperplanes(head_dim, self.bits, (self.seed, layer), "by element")

    def networks(self, config: ModelConfig, layer: int) -> LayerNetworks:
        network = CPU.select.simhash_network(self.planes(config.head_dim, layer))
        return LayerNetworks((network,), (network,))


@dataclass(frozen=True, eq=False)
class Dense:
    """y = W x + b of every head: weight float16 (heads, out, in), bias float32 (heads, out)."""

    weight: NDArray[np.float16]
    bias: F32


@dataclass(frozen=True, eq=False)
class LearnedLayer:
    """The encoders of one layer: dense layers, the first one first, of its query and KV heads."""

    q: tuple[Dense, ...]
    k: tuple[Dense, ...]

    def arrays(self) -> list[NDArray[np.floating]]:
        """Weight and bias of each dense layer, those of q first."""
        return [array for dense in (*self.q, *self.k) for array in (dense.weight, dense.bias)]


@dataclass(frozen=True, eq=False)
class Learned(Encoder):
    """Networks E → hidden → hidden → bits with SiLU, or linear E → bits where hidden is 0; one per
    query head and one per KV head.

    layers: by number, those without a sliding window. fingerprint, base: fingerprint and name of
    the model. length: tokens of context in training. Source: HashAttention, section 4.1.
    """

    bits: int
    hidden: int
    length: int
    fingerprint: str
    base: str
    layers: Mapping[int, LearnedLayer]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"learned-{self.bits}-{self.digest[:8]}"

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of all weights."""
        state = blake2b(digest_size=8)
        for number in sorted(self.layers):
            for array in self.layers[number].arrays():
                state.update(array.tobytes())
        return state.hexdigest()

    def networks(self, config: ModelConfig, layer: int) -> LayerNetworks:
        learned = self.layers[layer]
        return LayerNetworks(_networks(learned.q), _networks(learned.k))


def _for_centred(network: Network, centre: F32) -> Network:
    """The network for inputs without their `centre` (E,)."""
    n_in, n_out = network.widths[:2]
    weights, end = network.weights.copy(), n_in * n_out
    weights[end : end + n_out] += centre @ weights[:end].reshape(n_in, n_out)
    return Network(weights, network.widths)


def _networks(dense: tuple[Dense, ...]) -> tuple[Network, ...]:
    """One network per head, its weights as the kernels read them: `[in][out]`, then the bias."""
    widths = (dense[0].weight.shape[2], *(layer.weight.shape[1] for layer in dense))
    parts = []
    for layer in dense:
        weight = layer.weight.swapaxes(1, 2).astype(np.float32)
        parts += [weight.reshape(len(weight), -1), layer.bias]
    return tuple(CPU.select.Network(row, widths) for row in np.concatenate(parts, 1))
