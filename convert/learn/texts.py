"""Text cut into contexts: most to train on, a few held out for measuring."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...ops.arrays import I32
from ...runtime.documents import read_document
from ...runtime.tokenizer import Tokenizer
from .settings import LearnError

HELD_OUT = 0.05  # of all contexts
MAX_HELD_OUT = 4


class Texts:
    """Contexts of `length` tokens, cut one after the other from files read as one text each.

    A seeded share of them is held out, at least one. The others come in a seeded order, and in
    another one each time all have been read. Each begins with BOS if the model wants that.
    """

    def __init__(self, files: Sequence[Path], tokenizer: Tokenizer, length: int, seed: int) -> None:
        self._length, self._seed = length, seed
        self._bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        state = hashlib.blake2b(digest_size=8)
        parts = []
        for path in files:
            text = read_document(path).encode()
            state.update(len(text).to_bytes(8, "little") + text)
            # What is written in a document is text, also where it looks like a control token.
            parts.append(np.array(tokenizer.encode(text, bos=False, special=False), np.int32))
        self.digest = state.hexdigest()
        self._ids: I32 = np.concatenate(parts)
        n = len(self._ids) // (length - len(self._bos))
        if n < 2:
            raise LearnError(
                f"the text has {len(self._ids):,} tokens and contexts of {length:,} are to be cut "
                "from it, one of them to measure on: give at least twice as much text, or a "
                "smaller --length"
            )
        order = np.random.default_rng((seed, 0)).permutation(n)
        held_out = min(MAX_HELD_OUT, max(1, round(HELD_OUT * n)))
        self._held_out, self._others = order[:held_out], order[held_out:]

    def __len__(self) -> int:
        """Tokens of the whole text."""
        return len(self._ids)

    @property
    def n_held_out(self) -> int:
        """Number of held-out contexts."""
        return len(self._held_out)

    def held_out(self, i: int) -> list[int]:
        """Ids of one of those."""
        return self._cut(int(self._held_out[i]))

    def context(self, i: int) -> list[int]:
        """Ids of context number i to learn from."""
        lap, place = divmod(i, len(self._others))
        order = np.random.default_rng((self._seed, 1, lap)).permutation(self._others)
        return self._cut(int(order[place]))

    def _cut(self, number: int) -> list[int]:
        n = self._length - len(self._bos)
        ids: list[int] = self._ids[number * n : (number + 1) * n].tolist()
        return self._bos + ids
