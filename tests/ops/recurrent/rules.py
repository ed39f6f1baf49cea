"""The rules by which layers change a state: kernels, references, and random texts to read."""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from kvarn.ops.cpu import CPU
from kvarn.ops.recurrent import DeltaHeads, ScanHeads
from kvarn.ops.recurrent.api import DeltaScratch
from kvarn.ops.reference.recurrent import delta_rule_reference
from kvarn.ops.reference.scan import selective_scan_reference

from .cuts import random

Text = dict[str, np.ndarray]
"""What a layer computes of some tokens, then its weights, by the operation's names."""
Results = tuple[np.ndarray, np.ndarray]
"""An output, and the state after it."""


class Rule(ABC):
    """A rule for heads of some sizes."""

    name: ClassVar[str]
    of_tokens: ClassVar[tuple[str, ...]]
    """The arrays of a text that have a row for each token."""
    heads: Any
    out_shape: tuple[int, int]
    """Of a token."""

    @abstractmethod
    def text(self, n_tokens: int, pace: float = 1.0) -> Text:
        """A random text; pace: how fast states decay."""

    @abstractmethod
    def run(self, text: Text, state: np.ndarray, out: np.ndarray) -> None:
        """The kernel."""

    @abstractmethod
    def reference(self, text: Text, before: np.ndarray) -> Results:
        """The recurrence in float64."""

    def part(self, text: Text, first: int, stop: int) -> Text:
        return {k: x[first:stop] if k in self.of_tokens else x for k, x in text.items()}

    def read(self, text: Text, borders: list[int], state: np.ndarray | None = None) -> Results:
        """After calls for the tokens between borders."""
        state = np.zeros(self.heads.state_shape, np.float32) if state is None else state.copy()
        out = np.full((borders[-1], *self.out_shape), np.nan, np.float32)
        for first, stop in pairwise(borders):
            self.run(self.part(text, first, stop), state, out[first:stop])
        return out, state


def _weights(n: int, pace: float) -> Text:
    return {
        "rates": (-pace * np.exp(random(n, seed=3))).astype(np.float32),
        "bias": random(n, seed=4),
    }


class Delta(Rule):
    """The gated delta rule."""

    name, of_tokens = "delta rule", ("qkv", "b", "a")

    def __init__(self, *sizes: int) -> None:
        self.heads = DeltaHeads(*sizes)
        self.out_shape = self.heads.n_values, self.heads.value_dim
        self._scratch = DeltaScratch(self.heads)

    def text(self, n_tokens: int, pace: float = 1.0) -> Text:
        n = self.heads.n_values
        qkv = random(n_tokens, self.heads.row, size=0.5)
        b, a = (random(n_tokens, n, seed=seed, size=2.0) for seed in (1, 2))
        return {"qkv": qkv, "b": b, "a": a, **_weights(n, pace)}

    def run(self, text: Text, state: np.ndarray, out: np.ndarray) -> None:
        CPU.recurrent.gated_delta_rule(*text.values(), state, out, self._scratch)

    def reference(self, text: Text, before: np.ndarray) -> Results:
        qkv, b, a, *weights = text.values()
        return delta_rule_reference(qkv, b, a, tuple(weights), before, self.heads)


class Scan(Rule):
    """The selective scan."""

    name, of_tokens = "selective scan", ("xbc", "dt")

    def __init__(self, *sizes: int) -> None:
        self.heads = ScanHeads(*sizes)
        self.out_shape = self.heads.n_heads, self.heads.head_dim

    def text(self, n_tokens: int, pace: float = 1.0) -> Text:
        n = self.heads.n_heads
        xbc = random(n_tokens, self.heads.row, size=0.5)
        dt = random(n_tokens, n, seed=1, size=2.0)
        return {"xbc": xbc, "dt": dt, **_weights(n, pace), "skip": random(n, seed=6)}

    def run(self, text: Text, state: np.ndarray, out: np.ndarray) -> None:
        CPU.recurrent.selective_scan(*text.values(), state, out, self.heads)

    def reference(self, text: Text, before: np.ndarray) -> Results:
        xbc, dt, *weights = text.values()
        return selective_scan_reference(xbc, dt, tuple(weights), before, self.heads)
