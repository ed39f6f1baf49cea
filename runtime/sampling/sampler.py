"""A sampler: options that can start a generation. (Apart from them: its state imports them.)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .options import SamplingOptions

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer
    from .state import SamplerState


@dataclass(frozen=True)
class Sampler(SamplingOptions):
    __doc__ = SamplingOptions.__doc__

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_together()

    def start(self, tokenizer: Tokenizer | None = None) -> SamplerState:
        """The state of a new generation: its random numbers, its recent tokens, and how far its
        constraint is matched. Where `needs_tokenizer`, it needs the model's tokenizer."""
        from .state import SamplerState  # NumPy: not wanted where options are only parsed

        return SamplerState(self, tokenizer)
