"""The file `states`: checkpoints of what layers carry from token to token besides K and V.

    slot i at byte i * n:   n bytes, float32, of all layers in their order (store/states.py)

A superblock names slots, in the order of positions; slots that neither names are used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .....ops.arrays import F32
from .. import files
from ..pack_files import PackFiles
from .values import number, text

NAME = "states"
MOST_BYTES = 1 << 34
"""Of a checkpoint; one of a model of 27B parameters takes 150 MB."""
_MOST_SLOTS = 1 << 24
_MOST_TOKENS = 1 << 31


@dataclass(frozen=True)
class StateSlot:
    """A checkpoint after so many tokens, the slot it is in, its digest and that of the tokens."""

    n_tokens: int
    slot: int
    digest: str
    read: str
    """Of the ids: only a context that begins with just these tokens can go on from it."""

    @staticmethod
    def of(data: Any) -> StateSlot:
        """Of its fields, from JSON; ValueError for anything else."""
        n_tokens, slot, digest, read = data
        return StateSlot(
            number(n_tokens, 1, _MOST_TOKENS),
            number(slot, 0, _MOST_SLOTS),
            bytes.fromhex(text(digest)).hex(),
            bytes.fromhex(text(read)).hex(),
        )


def digest_of(tokens: Sequence[int]) -> str:
    """The digest of token ids."""
    return files.digest(np.asarray(tokens, "<u4").tobytes()).hex()


def read(folder: PackFiles, slot: StateSlot, n_bytes: int) -> F32:
    """The numbers of a checkpoint of `n_bytes`; `PackDamaged` if they are not as written."""
    data = folder.read_slot(NAME, slot.slot, n_bytes, bytes.fromhex(slot.digest), n_bytes)
    return np.frombuffer(data, "<f4").astype(np.float32)
