"""attend `hash`: the tokens whose signatures are nearest to the query's (HashAttention).

SCORE(k, q) = -Hamming(phi_k(k), phi_q(q)), equation 1 of the paper; keys are encoded once per KV
head, as stored. phi is learned (`kvarn learn`) where the model has encoders, else SimHash.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..methods import option
from .base import AttendError, LayerView
from .encoders import Encoder, SimHash
from .encoders.sidecar import BITS, find_encoders, read_sidecar
from .sparse import SEED, Budgeted, Chosen, OverSlots, SlotIndex

if TYPE_CHECKING:
    from ...models.config import ModelConfig
    from ...ops.select import Range
    from ..loading.model_info import ModelInfo
    from ..store import KVStore
    from .base import F32, I32

AUTO, SIMHASH = "auto", "simhash"
NOTICE = (
    "hash: this model has no learned encoders, so signatures are random projections (SimHash), "
    "which choose worse tokens: `kvarn learn` trains encoders"
)


@dataclass(frozen=True)
class Hash(Budgeted, OverSlots):
    """softmax over sinks, window and the tokens of the k nearest signatures of each query head.

    bits: of a signature, 32 or 64 (better beyond some 256K tokens); None: those of the learned
    encoders, 32 without. encoders: "auto" takes the sidecar beside the model's file, those in it,
    or else SimHash; "simhash" random projections; or the path of a sidecar. Source:
    HashAttention, section 4; its defaults for sink and window.
    """

    name: ClassVar[str] = "hash"
    summary: ClassVar[str] = "the tokens whose signatures are nearest to the query's"

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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bits is not None and self.bits not in BITS:
            raise AttendError(f"bits of a signature are {self.bits}, expected 32 or 64")

    @classmethod
    def variants(cls) -> tuple[Hash, ...]:
        return (cls(), *(cls(bits=bits, encoders=SIMHASH) for bits in BITS))

    def make_index(self, model: ModelInfo, store: KVStore) -> SignatureIndex:
        return SignatureIndex(model.config, store, *self.encoder_or_simhash(model))

    make_slot_index = make_index

    def encoder_or_simhash(self, model: ModelInfo) -> tuple[Encoder, str]:
        """What computes signatures, and a line for the user where the model has no encoders."""
        encoder = self.encoder(model)
        if encoder is not None:
            return encoder, ""
        return SimHash(self.bits or BITS[0], SEED), NOTICE if self.encoders == AUTO else ""

    def encoder(self, model: ModelInfo) -> Encoder | None:
        """The encoders that the options name; None for SimHash.

        Raises `AttendError` if they have other bits than asked for, and what `read_sidecar` raises.
        """
        if isinstance(self.encoders, Encoder):
            return self.encoders
        if self.encoders == SIMHASH:
            return None
        if self.encoders == AUTO:
            found = model.once(find_encoders)
        else:
            found = read_sidecar(Path(self.encoders), model.file)
        if found is not None and self.bits not in (None, found.bits):
            raise AttendError(
                f"the hash encoders of {model.name} have {found.bits} bits and --bits {self.bits} "
                f"was asked for: omit --bits, train others with `kvarn learn --bits "
                f"{self.bits}`, or use --encoders simhash"
            )
        return found


class SignatureIndex(SlotIndex):
    """A signature of every stored key; each query scans all of them."""

    def __init__(
        self, config: ModelConfig, store: KVStore, encoder: Encoder, notice: str = ""
    ) -> None:
        self.notices = (notice,) if notice else ()
        self.column = store.column(encoder.name, encoder.bits // 8)
        self._bits, self._config = encoder.bits, config
        sparse = [i for i, layer in enumerate(config.layers) if layer.window is None]
        self._networks = {i: encoder.networks(config, i) for i in sparse}
        if (centre := store.centre) is not None:
            found = self._networks.items()
            self._networks = {i: one.for_centred_keys(centre[i]) for i, one in found}
        self._queries = np.zeros(
            (config.n_kv_heads, config.n_heads // config.n_kv_heads), np.uint64
        )

    def prepare(self, n_ctx: int, k: int) -> None:
        from ...ops.select import SignatureScratch

        config = self._config
        self._scratch = SignatureScratch(config.n_heads, config.n_kv_heads, n_ctx, k)

    def extend(self, layer: LayerView, first: int, last: int) -> None:
        assert self.column is not None
        self._networks[layer.index].sign_keys(layer, self.column, first, last)

    def extend_slots(self, layer: LayerView, slots: I32, n_tokens: int) -> None:
        assert self.column is not None
        self._networks[layer.index].sign_slots(layer, self.column, slots, n_tokens)

    def choose(self, layer: LayerView, q: F32, among: Range, k: int, chosen: Chosen) -> int:
        from ...ops.select import nearest

        assert self.column is not None
        self._networks[layer.index].sign_queries(q[0], self._queries.ravel())
        nearest(
            self._queries, self.column.segments(layer.index), self._bits, among, k,
            chosen.lists, chosen.counts, seed=SEED, taken=chosen.taken, scratch=self._scratch,
        )  # fmt: skip
        passes = self._scratch.group // self._scratch.together
        n_tokens = among.last - among.first
        return passes * n_tokens * self._config.n_kv_heads * self._bits // 8
