"""Contexts too long to read, for measurements: what was read is repeated with noise.

Token p of a filled context holds K and V of token p modulo n, the n tokens that were read (in a
layer with a window, those of them that it still holds), as stored, plus noise of a quarter of the
standard deviation that each channel has over those tokens.
So lengths and similarities of vectors stay near those of the model, no two tokens are equal, and
everything that reads the store does the same work as in a context that was read. What the model
generates then means nothing.
"""

from __future__ import annotations

import numpy as np

from ...ops.arrays import F32
from ...ops.attention.layout import SEGMENT
from ...ops.cpu import CPU
from ...system.errors import KvarnError
from ...system.spelling import spelt
from ..cache import KVCache
from ..engine import on_engine
from ..memory import available_bytes, human_bytes
from ..methods import Progress
from .reading.prompt import ContextError
from .reading.token_reader import TokenReader
from .saving import Saving

NOISE = 0.25
"""Standard deviation of the noise, as a share of that of each channel over the tokens read."""
SEED = 20_240_517
SAVED_SEGMENTS = 16
"""Save after this many segments: unsaved ones are in memory."""


class FillError(KvarnError):
    """A context cannot be filled."""


def fill(
    cache: KVCache,
    reader: TokenReader,
    saving: Saving,
    n_tokens: int,
    progress: Progress | None = None,
) -> None:
    """Fill a context up to `n_tokens` tokens, and save on the way: see `Context.fill`."""
    n_held, most = len(reader.tokens), cache.most_tokens
    if not 0 < n_held <= n_tokens <= most:
        raise ContextError(
            f"cannot fill a context of {n_held} tokens up to {n_tokens}: it must hold at least one "
            f"token and has room for {most}"
        )
    filling = on_engine(Filling, cache, reader, saving)
    filling.check_room(n_tokens)
    while len(reader.tokens) < n_tokens:
        on_engine(filling.fill_segment, n_tokens)
        if progress is not None:
            progress(len(reader.tokens), n_tokens)


class Filling:
    """Appends to a KV cache as if tokens were read; runs on the engine thread.

    Holds K and V of the tokens that were read in float32. A segment of a layer with 8 KV heads of
    64 takes 3.4 ms (one core of a Zen 3, q8_0).
    """

    def __init__(self, cache: KVCache, reader: TokenReader, saving: Saving) -> None:
        if not cache.keeps_all:
            raise FillError("only a context that keeps all of its tokens can be filled")
        store, n_read = cache.store, len(reader.tokens)
        self._reader, self._saving = reader, saving
        cache.begin(n_read, 0, prompt=True)
        self._cache, self._store, self._n_read = cache, store, n_read
        self._skip_to(n_read)
        self._real: list[tuple[F32, F32]] = []
        self._spread: list[tuple[F32, F32]] = []
        for layer in range(store.n_layers):
            first = store.first(layer)
            heads = store.layout_of(layer), store.kv_heads_of(layer)
            k, v = store.device.read_kv(store.segments(layer), *heads, first, n_read)
            around = np.arange(n_read - first + SEGMENT) % (n_read - first)
            self._real.append((k[around], v[around]))
            self._spread.append((NOISE * k.std(0), NOISE * v.std(0)))
        self._rng = np.random.default_rng(SEED)
        # Noise starts at a random one of 1,024 rows of these: drawing each number would cost most.
        shapes = dict.fromkeys(k.shape[1:] for k, _ in self._real)
        self._noise = {s: self._rng.standard_normal((2 * SEGMENT, *s), np.float32) for s in shapes}
        self._rows = {shape: np.empty((2, SEGMENT, *shape), np.float32) for shape in shapes}

    def check_room(self, n_tokens: int) -> None:
        """Raise `FillError` if memory cannot hold the KV cache and indexes of `n_tokens`."""
        if self._store.saves or self._store.device is not CPU:
            return  # a full disk is an error before anything is written; a GPU's memory is held
        needed = self._store.growth(self._n_read, n_tokens)
        if needed > (available := available_bytes()):
            raise FillError(
                f"filling a context of {n_tokens:,} tokens needs {human_bytes(needed)} more of KV "
                f"cache and index, and {human_bytes(available)} of memory is available: use a "
                f"smaller depth or {spelt('kv_type')}, or {spelt('store')} DIR"
            )

    def fill_segment(self, n_tokens: int) -> None:
        """Go on to the end of a segment, but not beyond `n_tokens` tokens."""
        tokens = self._reader.tokens
        done = len(tokens)
        stop = min(n_tokens, (done // SEGMENT + 1) * SEGMENT)
        self._reader.forget()
        self._append(done, stop)
        self._skip_to(stop)
        self._reader.add([tokens[i % self._n_read] for i in range(done, stop)], prompt=False)
        if self._store.saves and stop // SEGMENT % SAVED_SEGMENTS == 0:
            self._saving.save()

    def _skip_to(self, n_tokens: int) -> None:
        """Layers that carry a state keep the one that they have."""
        if self._store.states is not None:
            self._store.states.skip_to(n_tokens)

    def _append(self, start: int, stop: int) -> None:
        """Store tokens start … stop - 1, at most 1,024."""
        self._cache.begin(start, stop - start, prompt=True)
        n = stop - start
        for layer, (real, spread) in enumerate(zip(self._real, self._spread)):
            shape = real[0].shape[1:]
            rows, noise = self._rows[shape], self._noise[shape]
            for part, values, deviation in zip(rows, real, spread):
                shift = int(self._rng.integers(SEGMENT))
                np.multiply(noise[shift : shift + n], deviation, out=part[:n])
                at = start % (len(values) - SEGMENT)
                part[:n] += values[at : at + n]
            put = self._store.device.put
            self._store.append(layer, put(rows[0, :n]), put(rows[1, :n]), start)
