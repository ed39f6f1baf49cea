"""What a process computes for one token, on arrays of its own.

What runs again, for other queries, is recorded: an interpreter that is no longer in the CPU's
caches needs 100 µs for what a recorded call needs 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...ops.arrays import F32, I64, U64
from ...ops.attention.decode.gathered import GatheredScratch, gathered_attention
from ...ops.attention.softmax import Softmax
from ...ops.device import Device, Numbers, Recorded
from ...ops.select import Lists

NOTHING = np.float32(-1e30)
"""m where no token is read."""


class Launches:
    """Operations of a device: `launch` calls them, and is kept, as it has the memory they use. The
    second run records them, unless they may not be recorded: many run once."""

    def __init__(self, device: Device, launch: Callable[[], None], records: bool = True) -> None:
        self._device, self._launch, self._records = device, launch, records
        self._recorded: Recorded | None = None
        self._ran = False

    def run(self) -> None:
        """Run them."""
        if self._recorded is None and self._ran and self._records:
            self._recorded = self._device.record(self._launch)
        self._ran = True
        if self._recorded is None:
            self._launch()
        else:
            self._recorded.run()


class BestSearch:
    """The search for the best of a layer's tokens for each query head, by the queries (1, H, E) or
    by their signatures (J, G).

    operand: memory for these; entries: what `launches` make of it, uint64 (H, k)
    (`ops.select.parts`).
    """

    def __init__(self, operand: NDArray[Any], entries: U64, launches: Launches) -> None:
        self.operand, self.entries, self._launches = operand.data.cast("B"), entries, launches
        self._found_for = b"", b""

    def run(self) -> None:
        """Fill the entries for what `operand` holds."""
        self._launches.run()

    def find(self, operand: bytes, among: bytes) -> None:
        """Fill the entries for queries or signatures and for tokens that compete, given as bytes,
        unless these are there."""
        if (operand, among) != self._found_for:
            self._found_for = b"", b""
            self.operand[:] = operand
            self.run()
            self._found_for = operand, among


class PartAttention:
    """Attention of q (1, H, E) to all tokens up to number `last` of a part, and its masses (1, H,
    2). attend: fills out, and leaves the masses in `left` (H, 2)."""

    def __init__(self, q: F32, out: F32, left: F32, last: Numbers, attend: Launches) -> None:
        self.q, self.out, self.last, self._left, self._attend = q, out, last, left, attend
        self.masses: F32 = np.empty((1, *left.shape), np.float32)

    def run(self) -> None:
        """Fill out and masses."""
        self._attend.run()
        self.masses[0] = self._left


class Tokens(NamedTuple):
    """A layer's tokens, the first of those that may be read, and how these are.

    many: many are read. Recorded attention to few would wake all threads for them, as nobody knows
    then how few they are.
    """

    segments: I64
    first: int
    softmax: Softmax
    scratch: GatheredScratch
    many: bool


class ListAttention:
    """Attention of q (1, H, E) to a list of tokens of each KV head, and its masses (1, H, 2).

    find: fills the lists.
    """

    def __init__(
        self, device: Device, q: F32, lists: Lists, find: Callable[[], None], tokens: Tokens
    ) -> None:
        self.q, self.lists, self._tokens = q, lists, tokens
        self.out, self.masses = np.empty_like(q), np.empty((1, q.shape[1], 2), np.float32)
        self._read = np.empty_like(lists.counts)
        self._find = Launches(device, find)
        self._attend = Launches(device, self._launch, tokens.many)

    def _launch(self) -> None:
        tokens = self._tokens
        gathered_attention(
            self.q, self.lists.tokens, self._read, tokens.segments, self.out,
            softmax=tokens.softmax, scratch=tokens.scratch,
        )  # fmt: skip

    def run(self) -> None:
        """Fill the lists, out, and masses."""
        self._find.run()
        listed, counts = self.lists
        np.maximum(counts, 1, out=self._read)
        empty = [j for j, n in enumerate(counts.tolist()) if not n]
        if empty:  # their first token is read, and counts for nothing below
            listed[empty, 0] = self._tokens.first
        self._attend.run()
        self.masses[0] = self._tokens.scratch.masses
        if empty:
            self.masses.reshape(len(counts), -1, 2)[empty] = NOTHING, 1.0
