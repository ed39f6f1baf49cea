"""The options that sparse methods share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...methods import option
from ..base import Attend, AttendError

NONE = "none"
_MOST_LAYERS = 1 << 16  # of any model


@dataclass(frozen=True)
class SparseOptions(Attend, ABC):
    """Options common to all sparse methods.

    sink, window: the first and the last tokens, which are always read. dense_layers: layers that
    read every token, as "0,16", "none" or a sequence of numbers. probe: every so many steps of a
    layer, measure the softmax mass covered and the error of the output (0: never; it reads all
    tokens).
    """

    selects: ClassVar[bool] = True

    sink: int = option(0, "always read the first N tokens", int)
    window: int = option(0, "always read the last N tokens", int)
    dense_layers: str | Sequence[int] = option(
        NONE, "layers that read every token, such as 0,16, or none", metavar="N,…"
    )
    probe: int = option(
        0, "every N steps measure the softmax mass that was read and the error of the output", int
    )

    def __post_init__(self) -> None:
        for name in ("sink", "window", "probe"):
            if getattr(self, name) < 0:
                raise AttendError(f"{name} is {getattr(self, name)}, expected 0 or more")
        if self.window < 1:
            raise AttendError("window is 0, expected at least 1: the newest token is always read")
        self.dense(_MOST_LAYERS)

    @abstractmethod
    def most(self, stored: int, group: int, share: float) -> int:
        """Tokens that one of the `group` query heads of a KV head may choose out of `stored`, in a
        layer with `share` times the mean number (see `shares`)."""

    def reads_all(self, stored: int, group: int, share: float) -> bool:
        """Whether the method may read all of `stored` tokens, so that attention is exact."""
        most = self.most(stored, group, share)
        return self.sink + self.window + most * group >= stored

    def shares(self, n_layers: int) -> list[float]:
        """Each choosing layer's budget as a multiple of their mean."""
        return [1.0] * n_layers

    def dense(self, n_layers: int, windowed: Collection[int] = ()) -> frozenset[int]:
        """The layers that read every token; `AttendError` where the model has no such layer.

        windowed: those with a sliding window, which never choose.
        """
        words: Sequence[object] = self.dense_layers
        if isinstance(words, str):
            words = [] if words == NONE else words.split(",")
        try:
            layers = frozenset(int(str(word)) for word in words)
        except ValueError:
            raise AttendError(
                f"dense layers are {self.dense_layers!r}, expected numbers such as 0,16, or none"
            ) from None
        for layer in sorted(layers):
            if not 0 <= layer < n_layers:
                raise AttendError(
                    f"dense layer {layer} does not exist: the layers are 0 to {n_layers - 1}"
                )
        return layers
