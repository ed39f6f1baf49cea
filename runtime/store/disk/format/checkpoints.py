"""The file `checkpoints`: of layers with a window, the last tokens of some segments.

    slot i at byte i * n * bytes of a row:   n rows, in the order of positions
    row:                                     the token in those layers (store/rows.py)

n is the widest window, at most 1,024. After segment s, a context goes on with those of the segments
up to s that a window reaches. A superblock names slots, in the order of segments; slots that
neither names are used again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from .values import number, text

NAME = "checkpoints"
MOST = 1024
"""In a superblock, which has room for more: the newest ones. They reach back 16 million tokens."""
_MOST_SLOTS = 1 << 24


@dataclass(frozen=True)
class Checkpoint:
    """The last tokens of a full segment, the slot they are in, and their digest."""

    segment: int
    slot: int
    digest: str

    @staticmethod
    def of(data: Any) -> Checkpoint:
        """Of its fields, from JSON; ValueError for anything else."""
        segment, slot, digest = data
        return Checkpoint(
            number(segment), number(slot, 0, _MOST_SLOTS), bytes.fromhex(text(digest)).hex()
        )


def segments_to_keep(
    n_full: int, n_before: int, spacing: int, others: Collection[int] = ()
) -> list[int]:
    """The segments of which a commit with `n_full` full ones keeps the last tokens: those before
    its open segment, before the one before, before each multiple of `spacing` segments, and before
    each of `others`."""
    ends = {n_full, n_full - 1, *range(spacing, n_full, spacing)}
    ends |= {min(other, n_full) for other in others}
    segments = {s for end in ends for s in range(max(0, end - n_before), end)}
    return sorted(segments)[-MOST:]


def newest_end(segments: Collection[int], n_before: int, most: int) -> int:
    """The largest number of full segments, up to `most`, after which a context can go on with the
    last tokens of these segments; 0: none."""
    return next(
        (
            end
            for end in range(most, 0, -1)
            if all(s in segments for s in range(max(0, end - n_before), end))
        ),
        0,
    )
