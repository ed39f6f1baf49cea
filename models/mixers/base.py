"""What the mixers of all kinds have in common, and those that carry a state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from ...ops.device import Activations, Array
from ..attention import Attention
from ..config import ModelConfig
from ..loader import Linear
from ..workspace import Rows, Widths, Workspace

WeightsT = TypeVar("WeightsT")
ConfigT = TypeVar("ConfigT")


class Mixer(ABC, Generic[WeightsT, ConfigT]):
    """One layer's mixer, in the three steps between which the forward pass may be recorded.

    `project` and `output` know no context: what is recorded of them serves all contexts.
    number: the layer's place among those with attention, or those with a state; rotation: which
    of the model's rotations it has, or None.
    """

    def __init__(
        self,
        weights: WeightsT,
        layer: ConfigT,
        number: int,
        rotation: int | None,
        config: ModelConfig,
        work: Workspace,
    ) -> None:
        self._weights, self._layer, self._number = weights, layer, number
        self._rotation, self._config, self._work = rotation, config, work
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make what the kind computes with."""

    @staticmethod
    @abstractmethod
    def widths(config: ModelConfig, layer: ConfigT) -> Widths:
        """The memory that the steps use."""

    @abstractmethod
    def project(self, source: Activations, b: Rows, outputs: Rows, angles: list[Array]) -> None:
        """Compute what `mix` needs of `source`, which holds the normed rows of `b`.

        outputs: the rows whose outputs are wanted, `b` itself or the last of them. Afterwards
        `source` holds the normed rows of `outputs`. angles: rows of each of the model's rotations.
        """

    @abstractmethod
    def mix(self, attention: Attention, tokens: Rows, outputs: Rows) -> None:
        """Mix the rows `tokens` with the context's earlier ones, for the rows `outputs`."""

    @abstractmethod
    def output(self, b: Rows, out: Array) -> None:
        """The layer's branch, float32 (T, n_embd), of what `mix` wrote for the rows `b`."""

    def _multiply(
        self,
        source: Activations,
        rows: tuple[Rows, Rows],
        of_all: Sequence[tuple[Linear, Array]],
        of_outputs: Sequence[tuple[Linear, Array]],
    ) -> None:
        """Products with biases: `of_all` of all rows (rows[0]), `of_outputs` of those whose outputs
        are wanted (rows[1]). Then `source` holds the latter."""
        b, outputs = rows
        if outputs is b:
            self._work.multiply(source, *of_all, *of_outputs)
        else:
            if of_all:
                self._work.multiply(source, *of_all)
            self._work.multiply(source.set(outputs.normed), *of_outputs)
        self._work.add_biases(*of_all, *of_outputs)


class StateMixer(Mixer[WeightsT, ConfigT]):
    """A mixer whose layer carries a state from token to token."""

    def _prepare(self) -> None:
        self._operations = self._work.device.recurrent
        self._mixed_in = self._work.input("of_states")
