"""keep `streaming`: attention sinks and the last tokens (StreamingLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .evicting import EvictingKeep
from .slots import Ring

if TYPE_CHECKING:
    from ..attend import LayerView
    from .slots import SlotParts


@dataclass(frozen=True)
class Streaming(EvictingKeep):
    """The first `sinks` tokens and the last budget − sinks, the newest included.

    Tokens keep their positions, where StreamingLLM renumbers those in its cache. Source: Xiao et
    al. 2023, with its 4 sinks. Raises `KeepError` for fewer than 0 sinks.
    """

    name: ClassVar[str] = "streaming"
    summary: ClassVar[str] = (
        "the first 4 and the newest: StreamingLLM's set, without its renumbering"
    )
    sinks: int = 4

    @property
    def protected(self) -> int:
        return self.sinks

    def open_layer(self, view: LayerView, parts: SlotParts) -> Ring:
        return Ring(view, parts, self.sinks)
