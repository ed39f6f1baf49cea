"""What maps queries and keys to signatures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...models.config import ModelConfig
    from ...ops.select import Network


class Encoder(ABC):
    """Networks per layer, for queries and for keys (after rope)."""

    name: str
    """Tells signatures of different encoders apart; the name of their column."""
    bits: int

    @abstractmethod
    def networks(self, config: ModelConfig, layer: int) -> tuple[Network, Network]:
        """The networks for queries and for keys of one layer."""


@dataclass(frozen=True)
class SimHash(Encoder):
    """Signs of projections onto random directions, the same for queries and keys.

    The directions of layer l are standard normal, drawn by NumPy's default generator seeded with
    (seed, l) in the order [input][bit]. Two vectors at angle a agree in a bit with probability
    1 - a / pi (Charikar 2002).
    """

    bits: int
    seed: int

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"simhash-{self.bits}-{self.seed}"

    def networks(self, config: ModelConfig, layer: int) -> tuple[Network, Network]:
        from ...ops.select import Network

        rng = np.random.default_rng((self.seed, layer))
        planes = rng.standard_normal((config.head_dim, self.bits)).astype(np.float32)
        weights = np.concatenate([planes.ravel(), np.zeros(self.bits, np.float32)])
        network = Network(weights, (config.head_dim, self.bits))
        return network, network
