"""Short convolution: b, c, x of the normed row → c * convolution of b * x → output projection."""

from __future__ import annotations

from dataclasses import dataclass

from ...ops.device import Activations, Array
from ..attention import Attention
from ..config import ModelConfig
from ..config.layers import ShortConvConfig
from ..loader import Linear, Loader
from ..workspace import Rows, Widths
from .base import StateMixer


@dataclass(frozen=True)
class ShortConvWeights:
    """The tensors of one layer's short convolution."""

    bcx: Linear
    convolution: Array
    """float32 (width, channels), the oldest row first."""
    output: Linear

    @staticmethod
    def load(
        loader: Loader, prefix: str, config: ModelConfig, layer: ShortConvConfig
    ) -> ShortConvWeights:
        """Read `{prefix}.shortconv.in_proj`, `conv` and `out_proj`."""
        return ShortConvWeights(
            bcx=loader.linear(f"{prefix}.shortconv.in_proj", 3 * layer.n, config.n_embd),
            convolution=loader.columns(f"{prefix}.shortconv.conv.weight", (layer.n, layer.width)),
            output=loader.linear(f"{prefix}.shortconv.out_proj", config.n_embd, layer.n),
        )


class ShortConvMixer(StateMixer[ShortConvWeights, ShortConvConfig]):
    """The short convolution of one layer."""

    @staticmethod
    def widths(config: ModelConfig, layer: ShortConvConfig) -> Widths:
        """See `Mixer`."""
        return Widths({"bcx": 3 * layer.n, "mixed": layer.n}, {"of_states": layer.n})

    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """b, c and x of all rows."""
        self._work.linear(source, self._weights.bcx, b.array("bcx", 3 * self._layer.n))
        if outputs is not b:
            source.set(outputs.normed)

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """The gated convolution of all tokens."""
        (before,) = attention.state(self._number)
        n = self._layer.n
        bcx, mixed = tokens.array("bcx", 3 * n), tokens.array("mixed", n)
        self._operations.gated_short_conv(bcx, self._weights.convolution, before, mixed)

    def output(self, b: Rows, out: Array) -> None:
        """The output projection."""
        mixed = self._mixed_in.set(b.array("mixed", self._layer.n))
        self._work.linear(mixed, self._weights.output, out)
