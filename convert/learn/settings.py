"""The settings of a training run: equal settings, model and text give equal encoders."""

from __future__ import annotations

from dataclasses import dataclass

from ...runtime.attend.encoders.sidecar import BITS
from ...runtime.context.reading.prompt import CHUNK
from ...system.errors import KvarnError

LOSSES = ("softmax", "bce")
HIDDEN = (0, 128)


class LearnError(KvarnError):
    """Encoders cannot be learned from these texts, with these settings."""


@dataclass(frozen=True)
class Settings:
    """bits of a signature; hidden: units of each of two hidden layers (the paper's 128), or 0 for
    linear encoders; length: tokens of a context, as long as those of use; tokens: how many are read
    to learn from, in whole contexts.

    loss: "softmax" or the paper's "bce", see `networks`. labels: tokens that each query should
    find, of those between sink and window. queries: of each chunk, learned from in `steps` steps.
    negatives: keys that are no labels, drawn for each step. rate: Adam's. The defaults were
    measured, see docs/guides/learn.md.
    """

    length: int
    tokens: int
    bits: int = 64
    hidden: int = 0
    sink: int = 128
    window: int = 128
    loss: str = "softmax"
    labels: int = 64
    queries: int = 32
    steps: int = 4
    negatives: int = 1536
    rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise LearnError(
                f"signatures of {self.bits} bits cannot be searched: use --bits 64, or 32 for half "
                "the memory"
            )
        if self.hidden not in HIDDEN:
            raise LearnError(
                f"hidden layers of {self.hidden} units cannot be learned: use --hidden 0 for "
                "linear encoders, or 128"
            )
        if self.loss not in LOSSES:
            raise LearnError(f"loss is {self.loss!r}, expected one of {', '.join(LOSSES)}")
        if self.seed < 0:
            raise LearnError(f"seed is {self.seed}, expected 0 or more")
        least = self.sink + self.window + 4 * self.labels
        if self.length < least:
            raise LearnError(
                f"a context of {self.length} tokens is too short to learn from: beside "
                f"{self.sink + self.window} tokens that are always read it needs at least "
                f"{4 * self.labels} to choose from: {least} in all"
            )
        if self.tokens < self.length:
            raise LearnError(
                f"--tokens {self.tokens} is less than one context of {self.length} tokens: "
                "read more, or give a smaller --length"
            )

    @property
    def n_contexts(self) -> int:
        """Contexts to read."""
        return self.tokens // self.length

    @property
    def chunks_each(self) -> int:
        """Chunks of one context."""
        return -(-self.length // CHUNK)

    @property
    def n_chunks(self) -> int:
        """Chunks to read in all."""
        return self.n_contexts * self.chunks_each
