"""Counters of what a sparse method has read, for each layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..store.facts import ProbeFacts, ProbeSums


@dataclass(slots=True)
class LayerReads:
    """Counters of one layer over all decoding steps; tokens and bytes over all KV heads.

    Steps that read everything count as `full_steps` and nowhere else.
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
    """Sum over probes of the mean coverage of the query heads."""
    entropy: float = 0.0
    """Sum over probes of the mean over the query heads of the softmax's entropy, in nats."""
    output_error: float = 0.0
    """Sum over probes of the mean of ‖o - o_full‖ / ‖o_full‖ over the query heads."""

    def add_probes(self, other: LayerReads) -> None:
        """Add what probes have measured in `other`."""
        self.probes += other.probes
        self.covered_mass += other.covered_mass
        self.entropy += other.entropy
        self.output_error += other.output_error

    def as_dict(self) -> dict[str, Any]:
        """The counters; covered_mass, entropy, output_error as means, None without a probe."""
        out = {name: getattr(self, name) for name in self.__slots__}
        for name in ("covered_mass", "entropy", "output_error"):
            out[name] = out[name] / self.probes if self.probes else None
        return out


def sums_of(layers: Iterable[LayerReads]) -> dict[int, ProbeSums]:
    """What probes have measured, by layer."""
    return {
        reads.layer: ProbeSums(reads.probes, reads.covered_mass, reads.output_error)
        for reads in layers
        if reads.probes
    }


def probed(layers: Iterable[LayerReads]) -> list[ProbeFacts]:
    """The means of what probes have measured in each layer."""
    return [sums.means(layer) for layer, sums in sums_of(layers).items()]
