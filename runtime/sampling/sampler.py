"""A sampler: options that can start a generation. (Apart from them: its state imports them.)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .options import SamplingOptions

if TYPE_CHECKING:
    from .state import SamplerState


@dataclass(frozen=True)
class Sampler(SamplingOptions):
    __doc__ = SamplingOptions.__doc__

    def start(self) -> SamplerState:
        """The state of a new generation: its random numbers and its recent tokens."""
        from .state import SamplerState  # NumPy: not wanted where options are only parsed

        return SamplerState(self)
