"""What a shard knows and answers: some segments of a pack, without a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.attention.layout import SEGMENT
from ...ops.attention.softmax import Softmax
from ...ops.errors import OpsError
from ...ops.select import Frame, Range
from ...system.text import one_line
from ...system.values import LARGEST
from ..attend.indexes.sketches import ITEMS
from ..attend.sparse.centred import names_of
from ..attend.sparse.frame import Frames, averaged
from ..engine import on_engine
from ..store import Column
from ..store.disk.errors import PackError
from ..store.disk.folder import PackFolder
from ..store.disk.format.log import KV
from ..store.disk.store import DiskStore
from .frames import MOST_ROWS, Arrays, FrameError, Kind, Message, text_of
from .greeting import facts_of
from .part import NO_LIMITS, Part, Query, Sketches

_MOST_HEADS = 1 << 12


class Shard:
    """Segments first … stop - 1 of the pack in `path`; stop None: up to the last full one.

    alone: nothing else in this process computes, and kernels run in one thread, so that any thread
    may run them, one at a time: an answer needs 50 µs less. Raises `PackError` for a pack that does
    not have the segments, or evicts.
    """

    def __init__(
        self, path: Path, first: int = 0, stop: int | None = None, *, alone: bool = False
    ) -> None:
        self._alone = threading.Lock() if alone else None
        folder = PackFolder(path)
        if folder.manifest.slots is not None:
            raise PackError(path, "it keeps some tokens only (--keep), which shards cannot serve")
        self._store = store = DiskStore(folder)
        found = f"--segments {first}:{'' if stop is None else stop}"
        n_full, n_tokens = store.saved_items(KV) // SEGMENT, len(store.saved.tokens)
        if not n_full:
            raise PackError(
                path,
                f"it has {n_tokens:,} tokens, fewer than a segment of {SEGMENT:,}: it needs no "
                "shards",
            )
        stop = n_full if stop is None else stop
        if not 0 <= first < stop <= n_full:
            raise PackError(
                path,
                f"it has {n_full:,} full segments of {SEGMENT:,} tokens (0:{n_full}), found "
                f"{found}",
            )
        self.facts = facts_of(store, first, stop)
        self._part = Part(store, self.facts.first, self.facts.stop)
        self._whole = frozenset(folder.whole_layers)
        self._frames: dict[int, Frame] = {}
        self._answers: dict[Kind, Callable[[list[NDArray[Any]]], Arrays]] = {
            Kind.ROWS: self._rows,
            Kind.NEAREST: self._nearest,
            Kind.LARGEST: self._largest,
            Kind.CHOSEN: self._chosen,
            Kind.SKETCHED: self._sketched,
        }

    @property
    def n_bytes(self) -> int:
        """Bytes of K and V that it may read, which stay in files until then."""
        folder, n = self._store.folder, self.facts.stop - self.facts.first
        return n // SEGMENT * folder.layer_bytes * len(folder.whole_layers)

    def answer(self, frame: Message) -> Arrays:
        """The answer to a question; `FrameError` for one that cannot be."""
        if frame.kind not in self._answers:
            raise FrameError(f"a message of kind {frame.kind.name} is no question")
        try:
            if self._alone is None:
                return on_engine(self._answers[frame.kind], frame.arrays)
            with self._alone:
                return self._answers[frame.kind](frame.arrays)
        except (OpsError, ValueError, TypeError, IndexError) as error:
            raise FrameError(f"a question that cannot be answered: {error}") from error

    def _rows(self, arrays: list[NDArray[Any]]) -> Arrays:
        numbers, q = arrays
        layer, softmax = self._layer(numbers[0]), _softmax(numbers)
        return self._part.all_of(layer, self._queries(q, MOST_ROWS), self.facts.stop, softmax)

    def _largest(self, arrays: list[NDArray[Any]]) -> Arrays:
        numbers, q = arrays
        layer, first, last, k = self._choice(numbers)
        return [self._part.best(layer, Query(self._queries(q, 1)), first, last, k)]

    def _nearest(self, arrays: list[NDArray[Any]]) -> Arrays:
        numbers, signatures, name = arrays
        layer, first, last, k = self._choice(numbers)
        column = self._column(signatures, name)
        query = Query(signatures=signatures, column=column)
        return [self._part.best(layer, query, first, last, k)]

    def _chosen(self, arrays: list[NDArray[Any]]) -> Arrays:
        choice, numbers, q, limits, signatures, name = arrays
        query = Query(self._queries(q, 1))
        if name.size:
            query = query._replace(signatures=signatures, column=self._column(signatures, name))
            group = q.shape[1] // len(signatures)
            _check("signatures", signatures, np.uint64, (len(signatures), group))
        if limits.size:
            _check("limits", limits, np.uint64, (q.shape[1],))
        return self._best_of(query, choice, numbers, limits)

    def _sketched(self, arrays: list[NDArray[Any]]) -> Arrays:
        choice, numbers, q = arrays
        sketches = self._sketches_of(self._layer(numbers[0]))
        query = Query(self._queries(q, 1), sketches=sketches)
        return self._best_of(query, choice, numbers, NO_LIMITS)

    def _sketches_of(self, layer: int) -> Sketches:
        """The pack's sketches of a layer, in the frame that the pack has."""
        n, sizes = averaged(len(self._store.saved.tokens)), (self._part.rotation.bits // 8, 2)
        columns = [self._stored(x, (size,)) for x, size in zip(names_of(ITEMS, n), sizes)]
        if layer not in self._frames:
            frame = Frames(self._store).saved(layer, n)
            if frame is None:
                raise FrameError(
                    "its pack has no frame of its sketches: `kvarn pack index NAME --method topk` "
                    "makes it, then start the shard again"
                )
            self._frames[layer] = frame
        return Sketches(columns[0], columns[1], self._frames[layer])

    def _best_of(
        self, query: Query, choice: NDArray[Any], numbers: NDArray[Any], limits: NDArray[Any]
    ) -> Arrays:
        """Attention to the best of these tokens, and to those that do not compete."""
        _check("numbers", choice, np.int64, (3,))
        first, last, k = map(int, choice)
        if not 0 <= first <= last <= LARGEST or k < 1:
            raise FrameError("a question names tokens that cannot be")
        layer, among = self._layer(numbers[0]), Range(first, last, LARGEST)
        return self._part.chosen(layer, query, among, k, limits, _softmax(numbers))

    def _column(self, signatures: NDArray[Any], name: NDArray[Any]) -> Column:
        """The column of a name, for signatures of queries."""
        if signatures.ndim != 2 or signatures.size > _MOST_HEADS:
            raise FrameError(f"signatures have the shape {signatures.shape}")
        shape = self._store.n_kv_heads, signatures.shape[1]
        _check("signatures", signatures, np.uint64, shape)
        return self._stored(text_of(name), (4, 8))

    def _stored(self, name: str, sizes: Sequence[int]) -> Column:
        """The column of a name, with items of one of these sizes."""
        shown = one_line(name, 80)
        if name not in self.facts.columns:
            raise FrameError(
                f"its pack has no index {shown} of its tokens: `kvarn pack index NAME` with the "
                "same --method makes it, then start the shard again"
            )
        column = self._store.columns[name]
        if column.item_bytes not in sizes:
            raise FrameError(f"index {shown} has items of {column.item_bytes} bytes")
        return column

    def _layer(self, number: float) -> int:
        if number not in self._whole:
            raise FrameError(f"there is no layer {number:g} that attends to all tokens")
        return int(number)

    def _choice(self, numbers: NDArray[Any]) -> tuple[int, int, int, int]:
        """Layer, first and last token, and k."""
        _check("numbers", numbers, np.int64, (4,))
        layer, first, last, k = map(int, numbers)
        if not self.facts.first <= first < last <= self.facts.stop or k < 1:
            raise FrameError("a question names tokens of others")
        return self._layer(layer), first, last, k

    def _queries(self, q: NDArray[Any], most: int) -> NDArray[Any]:
        """The queries of a question, if there can be such."""
        kv_heads, head_dim = self._store.n_kv_heads, self._store.layout.head_dim
        rows, heads = q.shape[:2] if q.ndim == 3 else (0, 0)
        if not 0 < rows <= most or not 0 < heads <= _MOST_HEADS or heads % kv_heads:
            raise FrameError(f"queries have the shape {q.shape}")
        _check("queries", q, np.float32, (rows, heads, head_dim))
        return q


def _check(name: str, array: NDArray[Any], dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        found = f"{array.dtype} {array.shape}"
        raise FrameError(f"{name} are {found}, expected {np.dtype(dtype)} {shape}")


def _softmax(numbers: NDArray[Any]) -> Softmax:
    """What a question says beside its layer."""
    _check("numbers", numbers, np.float64, (3,))
    if not np.isfinite(numbers).all():
        raise FrameError("numbers of a question are not finite")
    return Softmax(float(numbers[1]), float(numbers[2]))
