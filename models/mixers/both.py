"""Attention and a state-space mixer side by side: both read one normed row, and their outputs add
up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .attention import AttentionMixer, AttentionWeights
from .mamba2 import Mamba2Mixer, Mamba2Weights

if TYPE_CHECKING:
    from ...ops.device import Activations, Array
    from ..attention import Attention
    from ..config import ModelConfig
    from ..config.layers import BothConfig
    from ..loader import Loader
    from ..workspace import Rows, Workspace


@dataclass(frozen=True)
class BothWeights:
    """The tensors of one layer's two mixers."""

    attention: AttentionWeights
    state: Mamba2Weights

    @staticmethod
    def load(loader: Loader, prefix: str, config: ModelConfig, layer: BothConfig) -> BothWeights:
        """Read those of both."""
        return BothWeights(
            AttentionWeights.load(loader, prefix, config, layer.attention),
            Mamba2Weights.load(loader, prefix, config, layer.state),
        )


class BothMixer:
    """The two mixers of one layer."""

    def __init__(
        self,
        weights: BothWeights,
        layer: BothConfig,
        index: int,
        rotation: int | None,
        config: ModelConfig,
        work: Workspace,
    ) -> None:
        number = config.attention_number(index)
        self._attention = AttentionMixer(
            weights.attention, layer.attention, number, rotation, config, work
        )
        number = config.state_number(index)
        self._state = Mamba2Mixer(weights.state, layer.state, number, config, work)
        self._work, self._n_embd = work, config.n_embd

    @staticmethod
    def widths(config: ModelConfig, layer: BothConfig) -> dict[str, int]:
        """Floats of a row, by name: their memory is apart."""
        attention = AttentionMixer.widths(config, layer.attention)
        return attention | Mamba2Mixer.widths(layer.state) | {"of_attention": config.n_embd}

    @staticmethod
    def inputs(config: ModelConfig, layer: BothConfig) -> dict[str, int]:
        """Columns of both output projections."""
        return AttentionMixer.inputs(config, layer.attention) | Mamba2Mixer.inputs(layer.state)

    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """See `Mixer`."""
        self._state.project(source, b, outputs, angles)
        if outputs is not b:
            source.set(b.normed)
        self._attention.project(source, b, outputs, angles)

    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """See `Mixer`."""
        self._state.mix(attention, tokens, outputs)
        self._attention.mix(attention, tokens, outputs)

    def output(self, b: Rows, out: Array) -> None:
        """The sum of what both give."""
        of_attention = b.array("of_attention", self._n_embd)
        self._attention.output(b, of_attention)
        self._state.output(b, out)
        self._work.device.pointwise.add(out, of_attention, out)
