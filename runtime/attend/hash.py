"""attend `hash`: the tokens whose signatures are nearest to the query's (HashAttention).

SCORE(k, q) = -Hamming(phi_k(k), phi_q(q)), equation 1 of the paper; keys are encoded once per KV
head, as stored. Without learned encoders phi is SimHash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .base import AttendError, LayerView
from .encoders import Encoder, SimHash
from .sparse import SEED, Sparse, TokenIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...models.config import ModelConfig
    from ...ops.select import Range
    from ..store import KVStore

    F32 = NDArray[np.float32]

BITS = (32, 64)


@dataclass(frozen=True)
class Hash(Sparse):
    """softmax over sinks, window and the tokens of the k nearest signatures of each query head.

    bits: of a signature, 32 or 64 (better beyond some 256K tokens). Source: HashAttention,
    section 4; its defaults for sink and window.
    """

    sink: int = 128
    window: int = 128
    bits: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits not in BITS:
            raise AttendError(f"bits of a signature are {self.bits}, expected 32 or 64")

    def make_index(self, config: ModelConfig, store: KVStore) -> TokenIndex:
        notice = (
            "hash: no learned encoders for this model, its signatures are SimHash "
            "(random projections), which choose less well"
        )
        return SignatureIndex(config, store, SimHash(self.bits, SEED), notice)


class SignatureIndex(TokenIndex):
    """A signature of every stored key, all of which each query scans."""

    def __init__(
        self, config: ModelConfig, store: KVStore, encoder: Encoder, notice: str = ""
    ) -> None:
        self.notices = (notice,) if notice else ()
        self.column = store.column(encoder.name, encoder.bits // 8)
        self._bits, self._config = encoder.bits, config
        self._networks = [encoder.networks(config, i) for i in range(config.n_layers)]
        self._queries = np.zeros(
            (config.n_kv_heads, config.n_heads // config.n_kv_heads), np.uint64
        )

    def prepare(self, n_ctx: int, k: int) -> None:
        from ...ops.select import SelectScratch

        config = self._config
        self._scratch = SelectScratch(config.n_heads, config.n_kv_heads, n_ctx, k)

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        from ...ops.select import encode_keys

        assert self.column is not None
        store, i = layer.store, layer.index
        encode_keys(
            self._networks[i][1], store.segments(i), store.layout, store.n_kv_heads,
            self.column.segments(i), first, last,
        )  # fmt: skip

    def choose(
        self, layer: LayerView, q: F32, among: Range, k: int, lists: NDArray[np.uint32],
        counts: NDArray[np.int64],
    ) -> int:  # fmt: skip
        from ...ops.select import encode_rows, nearest

        assert self.column is not None
        encode_rows(self._networks[layer.index][0], q[0], self._queries.ravel())
        nearest(
            self._queries, self.column.segments(layer.index), self._bits, among, k, lists, counts,
            seed=SEED, scratch=self._scratch,
        )  # fmt: skip
        passes = self._scratch.group // self._scratch.together
        n_tokens = among.last - among.first
        return passes * n_tokens * self._config.n_kv_heads * self._bits // 8
