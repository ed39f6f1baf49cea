"""The training run as a whole: read, learn, save checkpoints, measure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...ops.arrays import F32, F64, I64
from ...runtime.attend.encoders import Learned, SimHash
from ...runtime.attend.sparse import SEED
from ...runtime.context import Context
from ...runtime.context.reading.prompt import CHUNK
from ...runtime.engine import on_engine
from ...runtime.model import Model
from ...runtime.store import Ram
from .checkpoint import Checkpoint, State
from .labels import Scores, make_batch
from .observer import ObservedFull, Observer
from .principal import Moments, principal_maps
from .recall import RERANKED, SHARES, Recall, measure, signatures, sketches
from .settings import LearnError, Settings
from .student import Student
from .texts import Texts

MEASURED = 4
"""Queries of each chunk that recall is measured on, in the later half of a context."""


@dataclass(frozen=True)
class Progress:
    """The progress of learning; of each layer the loss, and the share of labels in the best 1%."""

    n_tokens: int
    all_tokens: int
    layers: dict[int, tuple[float, float]]


class Learning:
    """Encoders of all layers without a window, learned chunk by chunk while the model reads.

    A checkpoint holds networks, optimisers and the number of chunks learned from. The next process
    reads the interrupted context again and continues exactly as the first would have.
    Raises `LearnError` for a model without such layers and a checkpoint of something else.
    """

    def __init__(
        self, model: Model, texts: Texts, settings: Settings, store: Ram, checkpoint: Path
    ) -> None:
        config = model.config
        layers = [i for i, layer in enumerate(config.kv_layers) if layer.window is None]
        if not layers:
            raise LearnError(f"{model.name} has a sliding window in every layer: none is sparse")
        if not config.one_geometry:
            raise LearnError(
                f"encoders of {model.name} cannot be learned: its layers differ in their keys and "
                "values; `hash` takes random projections, and topk needs none"
            )
        self._model, self._texts, self._settings = model, texts, settings
        self._store, self.checkpoint = store, Checkpoint(checkpoint)
        self._students = {i: Student(settings, config, i) for i in layers}
        self._about = {
            **asdict(settings),
            "kv": f"{store.k}/{store.v}",
            "text": texts.digest,
            "model": model.fingerprint,
        }
        self._reading_seconds: list[float] = []
        self._learning_seconds: list[float] = []
        self.done = 0
        """Chunks that have been learned from."""
        if (saved := self.checkpoint.read()) is not None:
            self._resume(saved)

    @property
    def learned(self) -> Learned:
        """The encoders as they are now."""
        return Learned(
            self._settings.bits,
            self._settings.hidden,
            self._settings.length,
            self._model.fingerprint,
            self._model.name,
            {i: student.layer for i, student in self._students.items()},
        )

    def run(self, progress: Callable[[Progress], None]) -> None:
        """Learn until all tokens are read; `progress` is called after each chunk, and may raise.

        Where encoders have not begun, the first context is read once more before, to find the
        directions in which its keys differ for its queries.
        """
        each = self._settings.chunks_each
        with self._reading() as (context, observer):
            if not all(student.begun for student in self._students.values()):
                self._begin(context, observer, progress)
            for number in range(self.done // each, self._settings.n_contexts):
                self._read(context, observer, number, progress)

    def _begin(
        self, context: Context, observer: Observer, progress: Callable[[Progress], None]
    ) -> None:
        """Read the first context; the encoders of each layer start from what is measured there."""
        config, ids = self._model.config, self._texts.context(0)
        observer.sink, observer.rows = self._settings.sink, np.empty(0, np.int64)
        observer.moments = {i: Moments(config.n_kv_heads, config.head_dim) for i in self._students}
        context.truncate(0)
        for start in range(0, len(ids), CHUNK):
            self._timed_prefill(context, ids[start : start + CHUNK])
            progress(Progress(min(start + CHUNK, len(ids)), self._all_tokens, {}))
        moments, observer.moments = observer.moments, {}
        for i, student in self._students.items():
            rng = np.random.default_rng((self._settings.seed, 4, i))
            student.begin(on_engine(principal_maps, moments[i], self._settings.bits, rng))

    def _read(
        self,
        context: Context,
        observer: Observer,
        number: int,
        progress: Callable[[Progress], None],
    ) -> None:
        """Read a context, and learn from each of its chunks that has not been learned from."""
        settings, ids, each = (
            self._settings,
            self._texts.context(number),
            self._settings.chunks_each,
        )
        context.truncate(0)
        for chunk in range(each):
            at, start = number * each + chunk, chunk * CHUNK
            rng = np.random.default_rng((settings.seed, 2, at))
            part = ids[start : start + CHUNK]
            observer.rows = rows = self._rows(start, len(part), settings.queries, rng)
            self._timed_prefill(context, part)
            if at < self.done:
                continue  # a chunk that an earlier process has learned from
            since = time.perf_counter()
            figures = self._learn(observer, start + rows, rng, at)
            if figures:
                self._learning_seconds.append(time.perf_counter() - since)
            self.done = at + 1
            n_tokens = (number + 1) * settings.length + start + len(part)
            progress(Progress(n_tokens, self._all_tokens, figures))

    def _timed_prefill(self, context: Context, ids: list[int]) -> None:
        since = time.perf_counter()
        context.prefill(ids)
        self._reading_seconds.append(time.perf_counter() - since)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until everything is learned and measured, by those of the chunks so far; None
        before a context has been read and a step has been taken."""
        each, learned = self._settings.chunks_each, self._learning_seconds
        if len(self._reading_seconds) < each or not learned:
            return None
        left = self._settings.n_chunks - self.done
        reading = float(np.mean(self._reading_seconds[:each]))
        to_read = left + self._texts.n_held_out * each
        return to_read * reading + left * float(np.mean(learned))

    def recalls(self, progress: Callable[[int, int], None]) -> list[Recall]:
        """The recall of the encoders, SimHash and sketches on held-out text.

        progress is called with (contexts read, contexts in all).
        """
        measured: dict[tuple[int, str], list[F64]] = {}
        with self._reading() as (context, observer):
            for number in range(self._texts.n_held_out):
                queries = self._read_held_out(context, observer, number)
                for layer, asked in queries.items():
                    for name, shares in on_engine(self._measure, observer, layer, asked).items():
                        measured.setdefault((layer, name), []).append(shares)
                progress(number + 1, self._texts.n_held_out)
        return [
            Recall(layer, name, tuple(np.concatenate(shares).mean(0).tolist()))
            for (layer, name), shares in measured.items()
        ]

    def save(self) -> None:
        """Write the checkpoint, whole or not at all; raises what `Checkpoint.write` raises."""
        layers = {i: student.state() for i, student in self._students.items()}
        self.checkpoint.write(State(self._about, self.done, layers))

    @property
    def _all_tokens(self) -> int:
        """Tokens to read: one context before learning begins, and those to learn from."""
        return (self._settings.n_contexts + 1) * self._settings.length

    def _resume(self, saved: State) -> None:
        for key, value in self._about.items():
            if saved.about.get(key) != value:
                raise LearnError(
                    f"{self.checkpoint.path} was begun with {key} {saved.about.get(key)} and this "
                    f"is {key} {value}: give the same options and text again, or remove it to "
                    "begin anew"
                )
        try:
            for i, student in self._students.items():
                student.load(saved.layers[i])
        except (ValueError, LookupError, RuntimeError) as error:
            raise self.checkpoint.damaged(error) from error
        self.done = saved.done

    @contextmanager
    def _reading(self) -> Iterator[tuple[Context, Observer]]:
        observer = Observer()
        store = replace(self._store, centred=False)  # encoders learn from the keys themselves
        with self._model.context(
            self._settings.length, ObservedFull(observer), store=store
        ) as context:
            yield context, observer

    def _rows(self, start: int, n: int, wanted: int, rng: np.random.Generator) -> I64:
        """Up to `wanted` rows of a chunk of n tokens, ascending. Their queries have enough tokens
        to choose from."""
        settings = self._settings
        least = settings.sink + settings.window + 2 * settings.labels
        rows = np.arange(max(0, least - start), n)
        return np.sort(rng.choice(rows, min(wanted, len(rows)), replace=False))

    def _learn(
        self, observer: Observer, positions: I64, rng: np.random.Generator, at: int
    ) -> dict[int, tuple[float, float]]:
        """A few steps of every layer on the recorded queries; returns the means of each layer."""
        settings, figures = self._settings, {}
        for i, student in self._students.items() if len(positions) else ():
            scores = Scores(self._model.config, observer.views[i], observer)
            results = []
            for step in range(settings.steps):
                part = slice(step, None, settings.steps)
                q = np.ascontiguousarray(observer.queries[i][:, part])
                if not q.size:
                    continue
                batch = on_engine(make_batch, scores, q, positions[part], settings, rng)
                done = (at + step / settings.steps) / settings.n_chunks
                results.append(student.step(batch, done))
            loss, share = np.mean(results, 0).tolist()
            figures[i] = loss, share
        return figures

    def _read_held_out(
        self, context: Context, observer: Observer, number: int
    ) -> dict[int, list[tuple[int, F32]]]:
        """Read it; of each layer some queries of its later half, (position, q (H, E))."""
        ids, rng = self._texts.held_out(number), np.random.default_rng((number, 3))
        queries: dict[int, list[tuple[int, F32]]] = {i: [] for i in self._students}
        context.truncate(0)
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]
            later = start + len(part) > len(ids) // 2
            observer.rows = self._rows(start, len(part), MEASURED * later, rng)
            context.prefill(part)
            for i, asked in queries.items():
                rows = observer.queries[i].swapaxes(0, 1)
                asked.extend(zip((start + observer.rows).tolist(), rows))
        return queries

    def _measure(
        self, observer: Observer, layer: int, asked: list[tuple[int, F32]]
    ) -> dict[str, F64]:
        config, view, stop = self._model.config, observer.views[layer], self._settings.length
        bits = self._settings.bits
        whole = -(-config.head_dim // 8) + 2
        n_bytes = min(whole, bits // 8)
        learned = signatures(self.learned, config, view, stop)
        rankings = {
            "learned": learned,
            f"learned{RERANKED}4": learned,
            "simhash": signatures(SimHash(bits, SEED), config, view, stop),
            f"sketch, {n_bytes} bytes": sketches(n_bytes, config, view, stop),
            f"sketch, {whole} bytes": sketches(whole, config, view, stop),
        }
        scores = Scores(config, view, observer)
        return measure(scores, asked, rankings, self._settings)


def table(recalls: list[Recall]) -> list[dict[str, Any]]:
    """The figures for a program: one object a layer and method."""
    return [
        {
            "layer": recall.layer,
            "method": recall.method,
            **{f"recall@{share:.0%}": round(x, 4) for share, x in zip(SHARES, recall.values)},
        }
        for recall in recalls
    ]
