"""What a sparse method has read, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class LayerReads:
    """Counters of one layer over all decoding steps; tokens and bytes over all KV heads.

    Steps in which everything was read count apart, as `full_steps`.
    """

    layer: int
    steps: int = 0
    full_steps: int = 0
    stored_tokens: int = 0
    attended_tokens: int = 0
    index_bytes: int = 0
    attention_bytes: int = 0
    index_seconds: float = 0.0
    attention_seconds: float = 0.0
    probes: int = 0
    covered_mass: float = 0.0
    """Sum over probes of the mean share of the softmax that the attended tokens hold."""
    output_error: float = 0.0
    """Sum over probes of the mean of ‖o - o_full‖ / ‖o_full‖ over the query heads."""

    def as_dict(self) -> dict[str, Any]:
        """The counters, with means of what was probed."""
        out = {name: getattr(self, name) for name in self.__slots__}
        for name in ("covered_mass", "output_error"):
            out[name] = out[name] / self.probes if self.probes else None
        return out
