"""attend `hash`: the tokens whose signatures are nearest to the query's (HashAttention).

SCORE(k, q) = -Hamming(phi_k(k), phi_q(q)), equation 1 of the paper; keys are encoded once per KV
head, as stored. phi is learned (`kvarn learn`) where the model has encoders, else SimHash. The best
may be chosen among some times as many by their products q·k (`rerank`), which the paper does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...models.config import ModelConfig
from ...ops.arrays import F32, I32, U64
from ...ops.select import Range, SignedKeys, Wanted
from ...system.errors import KvarnError
from ...system.spelling import spelt
from ...system.values import Budget
from ..loading.model_info import ModelInfo
from ..methods import option
from ..store import KVStore
from .base import AttendError, LayerView
from .encoders import Encoder, SimHash
from .encoders.sidecar import BITS, find_encoders, read_sidecar
from .losses import SIMHASH as SIMHASH_LOSS
from .sparse import SEED, Chosen, SlotIndex
from .sparse.index import Choice
from .tailed import TailedSparse

AUTO, SIMHASH = "auto", "simhash"
MOST_RERANK = 64
_LOSS = SIMHASH_LOSS.line("`kvarn learn` trains encoders; topk needs none")
ASKED = f"hash: {_LOSS}"
NOTICE = f"hash: this model has no learned encoders; {_LOSS}"


@dataclass(frozen=True)
class Hash(TailedSparse):
    """softmax over sinks, window and the tokens of the k nearest signatures of each query head.

    bits: of a signature, 32 or 64, which find more; None: those of the learned encoders, 32
    without. encoders: "auto" takes the sidecar beside the model's file, those in it,
    or else SimHash; "simhash" random projections; or the path of a sidecar. rerank: each query head
    finds so many times k tokens by signatures and takes the k largest q·k among those that the
    heads of a pass (`ops.select`) found; 1 takes the nearest signatures as they are. Source:
    HashAttention, section 4; its defaults for sink and window.
    """

    name: ClassVar[str] = "hash"
    summary: ClassVar[str] = "the tokens whose signatures are nearest to the query's"

    budget: Budget | str | int = Budget.parse("2%")  # noqa: RUF009 - frozen
    sink: int = 128
    window: int = 128
    bits: int | None = option(
        None, "bits of a signature, 32 or 64 (default: those of the learned encoders, else 32)", int
    )
    encoders: str | Path | Encoder = option(  # noqa: RUF009 - a field
        AUTO,
        "a file of `kvarn learn`, or simhash (default: MODEL.hash.gguf beside the model)",
        Path,
        metavar="FILE",
    )
    rerank: int = option(
        1,
        "find N times as many candidates by signatures, and take the best by their keys (default: "
        "the nearest signatures as they are)",
        int,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is not None and self.bits not in BITS:
            raise AttendError(f"bits of a signature are {self.bits}, expected 32 or 64")
        check_rerank(self.rerank, "hash", AttendError)

    @classmethod
    def variants(cls) -> tuple[Hash, ...]:
        simhash = (cls(bits=bits, encoders=SIMHASH, rerank=n) for n in (1, 2) for bits in BITS)
        return (cls(), *simhash, cls(tail="means"))

    def make_choice(self, model: ModelInfo, store: KVStore) -> SignatureIndex:
        return SignatureIndex(model.config, store, *self.encoder_or_simhash(model), self.rerank)

    make_slot_index = make_choice

    @property
    def host_only(self) -> str:
        return super().host_only if self.rerank == 1 else spelt("rerank")

    def encoder_or_simhash(self, model: ModelInfo) -> tuple[Encoder, str]:
        """What computes signatures, and a line for the user where these are not learned."""
        encoder = self.encoder(model)
        if encoder is not None:
            return encoder, ""
        return SimHash(self.bits or BITS[0], SEED), NOTICE if self.encoders == AUTO else ASKED

    def encoder(self, model: ModelInfo) -> Encoder | None:
        """The encoders that the options name; None for SimHash.

        Raises `AttendError` if they have other bits than asked for, and what `read_sidecar` raises.
        """
        if isinstance(self.encoders, Encoder):
            return self.encoders
        if self.encoders == SIMHASH:
            return None
        if self.encoders == AUTO:
            learned = model.once(find_encoders)
        else:
            learned = read_sidecar(Path(self.encoders), model.file)
        if learned is not None and self.bits not in (None, learned.bits):
            raise AttendError(
                f"the hash encoders of {model.name} have {learned.bits} bits and {spelt('bits')} "
                f"{self.bits} was asked for: omit {spelt('bits')}, train others with `kvarn learn "
                f"--bits {self.bits}`, or use {spelt('encoders')} simhash"
            )
        return learned


def check_rerank(rerank: int, method: str, error: type[KvarnError]) -> None:
    """Raise `error` unless so many times the tokens that are wanted can be candidates."""
    if not 1 <= rerank <= MOST_RERANK:
        raise error(f"rerank of {method} is {rerank}, expected 1 to {MOST_RERANK}")


class SignatureIndex(SlotIndex):
    """A signature of every stored key; each query scans all of them, and scores `rerank` times k
    keys exactly."""

    records = True

    def __init__(
        self,
        config: ModelConfig,
        store: KVStore,
        encoder: Encoder,
        notice: str = "",
        rerank: int = 1,
    ) -> None:
        self.notices = (notice,) if notice else ()
        self.column = store.column(encoder.name, encoder.bits // 8)
        self.encoder, self._bits = encoder, encoder.bits
        self._config, self._rerank = config, rerank
        self._layout, self._device = store.layout, store.device
        sparse = [i for i, layer in enumerate(config.kv_layers) if layer.window is None]
        networks = {i: encoder.networks(config, i) for i in sparse}
        if (centre := store.centre) is not None:
            networks = {i: layer.for_centred_keys(centre[i]) for i, layer in networks.items()}
        heads = config.n_heads, config.n_kv_heads
        self._networks = store.device.networks(networks, *heads, store.layout)
        shape = config.n_kv_heads, config.n_heads // config.n_kv_heads
        self._queries = store.device.memory(shape, np.uint64)

    def prepare(self, n_ctx: int, k: int) -> None:
        select = self._device.select
        heads = self._config.n_heads, self._config.n_kv_heads
        self._scratch = (
            select.SignatureScratch(*heads, n_ctx, k)
            if self._rerank == 1
            else select.RerankedScratch(*heads, n_ctx, self._rerank * k, self._layout)
        )

    def keys(self, layer: LayerView) -> SignedKeys:
        """The layer's keys and signatures, for kernels."""
        assert self.column is not None
        i = layer.index
        places = layer.store.segments(i), self.column.segments(i)
        keys: SignedKeys = layer.device.select.SignedKeys(*places, self._bits)
        return keys

    def extend(self, layer: LayerView, first: int, stop: int) -> None:
        assert self.column is not None
        self._networks[layer.index].sign_keys(layer, self.column, first, stop)

    def extend_slots(self, layer: LayerView, slots: I32, n_tokens: int) -> None:
        assert self.column is not None
        self._networks[layer.index].sign_slots(layer, self.column, slots, n_tokens)

    def sign(self, layer: LayerView, q: F32) -> U64:
        """The signatures of the queries (1, H, E): uint64 (J, G), valid until the next call."""
        self._networks[layer.index].sign_queries(q[0], self._queries.reshape(-1))
        signatures: U64 = self._queries
        return signatures

    def choose(self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen) -> int:
        self.sign(layer, q)
        self._nearest(layer, q, among, wanted, chosen)
        return self.bytes_read(layer.index, among, 0)

    def index_and_choose(
        self, layer: LayerView, span: list[int], q: F32, choice: Choice, chosen: Chosen
    ) -> None:
        networks = self._networks[layer.index]
        networks.sign_token(layer, self.column, span, q[0], self._queries.reshape(-1))
        self._nearest(layer, q, *choice, chosen)

    def _nearest(
        self, layer: LayerView, q: F32, among: Range, wanted: Wanted, chosen: Chosen
    ) -> None:
        """Choose by the signatures of the queries."""
        select, keys = layer.device.select, self.keys(layer)
        lists = select.Lists(chosen.lists, chosen.counts)
        if self._rerank != 1:
            select.best_signed(
                select.SignedQueries(q, self._queries[None]), keys, among, wanted, lists,
                taken=chosen.taken, scratch=self._scratch,
            )  # fmt: skip
        else:
            select.nearest(
                self._queries, keys.items, self._bits, among, wanted, lists, taken=chosen.taken,
                scratch=self._scratch,
            )  # fmt: skip

    def wanted(self, among: Range, k: int) -> Wanted:
        competing = max(k, among.last - among.first)
        wanted: Wanted = self._device.select.Wanted(k, min(self._rerank * k, competing), SEED)
        return wanted

    def bytes_read(self, layer: int, among: Range, attended: int) -> int:
        n_tokens = (among.last - among.first) * self._config.n_kv_heads
        s = self._scratch
        return int(s.group // s.together * n_tokens * self._bits // 8)
