"""The tiny models to test with, for every architecture and its variants."""

from __future__ import annotations

from .tiny import dense, experts, gemma, hybrids, latent
from .tiny.case import Tiny

CASES: tuple[Tiny, ...] = (
    *(*dense.CASES, *gemma.CASES, *experts.CASES),
    *(*hybrids.CASES, *latent.CASES),
)
