"""Makes contexts of a depth, and times reading and generating after it."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ...ops.attention.layout import SEGMENT
from ..engine import on_engine
from ..methods import called
from ..store import Disk, KVStore, Ram, RamStore, Saved, Store
from ..store.resident import Resident, ResidentStore
from ..token_ids import TokenIds
from . import page_cache
from .cases import Case, Result, Setting, method_name

if TYPE_CHECKING:
    from ...ops.device import KVDevice
    from ..attend import Attend
    from ..context import Context, Progress
    from ..loading.model_info import ModelInfo
    from ..model import Model

S = TypeVar("S", bound=KVStore)
Sizes = Sequence[tuple[int, int]]
"""What is timed: (n_prompt, n_gen), one of them 0."""

STILL_CACHED = 0.1
"""Share of K and V on disk that may still be in memory in a cold case."""


class Observer:
    """Receives messages and progress; this one ignores them."""

    def say(self, line: str) -> None:
        """A message for the user."""

    def progress(self, title: str) -> Progress | None:
        """A function that is called with (done, total) during the work, or None."""
        return None


def run_depth(
    model: Model,
    depth: int,
    sizes: Sizes,
    setting: Setting,
    observer: Observer | None = None,
) -> Iterator[Result]:
    """Time each of `sizes` (n_prompt, n_gen) after `depth` tokens, which are read or filled once.

    Tokens are random. Each case runs once before it counts. On disk, times include saving;
    generating after a segment or more is also timed cold: from a pack that is opened anew, with its
    indexes in memory, but not K and V.
    """
    if setting.folder is None:
        yield from run_settings(model, depth, [(sizes, setting)], observer)
        return
    setting.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=setting.folder) as folder:
        pack = Path(folder) / "pack"
        for bench in _benches(model, depth, sizes, setting, observer):
            yield from bench.warm(Disk(pack, setting.type_k, setting.type_v))
            if depth >= SEGMENT and not bench.evicts:  # slots are in memory
                yield from bench.cold(pack)


def run_settings(
    model: Model,
    depth: int,
    runs: Sequence[tuple[Sizes, Setting]],
    observer: Observer | None = None,
) -> Iterator[Result]:
    """The same for several settings over one context in memory, in which the first one's types say
    how K and V are stored."""
    store: Ram | Disk = Ram(runs[0][1].type_k, runs[0][1].type_v)
    for sizes, setting in runs:
        for bench in _benches(model, depth, sizes, setting, observer):
            store = yield from bench.warm(store)


def _benches(
    model: Model, depth: int, sizes: Sizes, setting: Setting, observer: Observer | None
) -> list[_Bench]:
    observer = observer or Observer()
    return [_Bench(model, depth, sizes, setting, attend, observer) for attend in setting.attends]


@dataclass(frozen=True)
class _FilledRam(Ram):
    """Opens the KV cache in memory that an earlier context has filled, if it is on the device."""

    store: KVStore | None = None
    tokens: tuple[int, ...] = ()

    @property
    def gpu_bytes(self) -> int:
        return self.store.n_bytes if isinstance(self.store, ResidentStore) else 0

    def placed_on(self, device: KVDevice) -> Store | None:
        if isinstance(self.store, ResidentStore) and self.store.device is device:
            return _FilledResident(self, device)
        return None

    def open(self, model: ModelInfo, n_ctx: int) -> RamStore:
        if isinstance(self.store, RamStore):
            return self.with_tokens(self.store)
        return super().open(model, n_ctx)

    def with_tokens(self, store: S) -> S:
        store.saved = Saved(TokenIds(self.tokens), None)
        return store


@dataclass(frozen=True)
class _FilledResident(Resident):
    """The same in a GPU's memory."""

    def open(self, model: ModelInfo, n_ctx: int) -> ResidentStore:
        filled = self.host
        assert isinstance(filled, _FilledRam) and isinstance(filled.store, ResidentStore)
        if filled.store.has_room(n_ctx):
            return filled.with_tokens(filled.store)
        return super().open(model, n_ctx)


class _Bench:
    """One method at one depth of a run."""

    def __init__(
        self,
        model: Model,
        depth: int,
        sizes: Sizes,
        setting: Setting,
        attend: Attend,
        observer: Observer,
    ) -> None:
        self._model, self._depth, self._sizes = model, depth, sizes
        self._setting, self._attend, self._observer = setting, attend, observer
        longest = max((max(size) for size in sizes), default=0)
        n_timed = sum(map(max, sizes)) * (setting.repetitions + 1)
        self.evicts = setting.keep.evicts(depth + n_timed)
        self._n_ctx = depth + (n_timed if self.evicts else longest)
        self._n_read = depth if self.evicts else min(depth, setting.n_read)
        rng = np.random.default_rng(0)
        n_ids = self._n_read + longest
        self._ids: list[int] = rng.integers(0, model.config.n_vocab, n_ids).tolist()
        self._new = self._ids[n_ids - longest :]

    def warm(self, store: Ram | Disk) -> Generator[Result, None, Ram | Disk]:
        """Each case, in a context that is filled first if the store is empty. Returns the store for
        the next method, with its K and V if they are in memory."""
        with self._open(store) as context:
            self._deepen(context)
            for size in self._sizes:
                result = self._result(Case(*size, self._depth))
                self._observer.say(result.case.test)
                record = self._setting.record
                with nullcontext() if record is None else context.recording(record):
                    self._once(context, result.case)  # the run that does not count
                for _ in range(self._setting.repetitions):
                    self._sample(context, result)
                yield result
            if not self.evicts:
                context.truncate(self._depth)  # what is saved has just the depth
            filled = context.store
        if not filled.saves and isinstance(filled, RamStore | ResidentStore):
            types = filled.layout.k_type, filled.layout.v_type
            return _FilledRam(*types, tokens=tuple(context.tokens), store=filled)
        return store

    def _open(self, store: Ram | Disk) -> Context:
        attend, setting = self._attend, self._setting
        prefill = setting.prefill.for_prompt(self._n_ctx)
        context = self._model.context(self._n_ctx, attend, setting.keep, store, prefill)
        if context.where:
            self._observer.say(context.where)
        return context

    def cold(self, pack: Path) -> Iterator[Result]:
        """Each case that generates, from a pack that is opened anew each time."""
        files = sorted(pack.glob("layer-*.kv"))
        store = Disk(pack, read_only=True)
        for size in self._sizes:
            result = self._result(Case(*size, self._depth, cold=True))
            if size[0] or not self._drop_from_memory(files):
                continue
            self._observer.say(result.case.test)
            for _ in range(self._setting.repetitions):
                self._drop_from_memory(files)
                with self._open(store) as context:
                    context.index()
                    before = page_cache.resident_bytes(files)
                    self._sample(context, result)
                    result.disk_samples.append(page_cache.resident_bytes(files) - before)
                del context
            yield result

    def _drop_from_memory(self, files: list[Path]) -> bool:
        """Drop the files from memory; where that fails, say so and return False."""
        gc.collect()  # mapped files stay in memory
        if page_cache.CAN_FORGET:
            page_cache.forget(files)
            total = sum(file.stat().st_size for file in files)
            if page_cache.resident_bytes(files) <= STILL_CACHED * total:
                return True
        self._observer.say("no cold figures: the system keeps the files in memory")
        return False

    def _deepen(self, context: Context) -> None:
        """Bring the context to `depth` tokens, all of them indexed."""
        depth, n_read = self._depth, self._n_read
        if n_read > len(context.tokens):
            context.prefill(self._ids[:n_read], self._observer.progress(f"reading {n_read:,}"))
        if depth > len(context.tokens):
            context.fill(depth, self._observer.progress(f"filling up to {depth:,}"))
        context.store.pin(depth)  # what each repetition begins with
        context.index(self._observer.progress("indexing"))

    def _sample(self, context: Context, result: Result) -> None:
        """Add one repetition to the result."""
        before = _method_figures(context)
        result.samples_ns.append(self._once(context, result.case))
        index, attention, read = (
            b - a for a, b in zip(before, _method_figures(context), strict=True)
        )
        result.index_samples_ns.append(index)
        result.attention_samples_ns.append(attention)
        result.read_samples.append(read)

    def _once(self, context: Context, case: Case) -> int:
        """Nanoseconds of one repetition."""
        if not self.evicts:
            context.truncate(self._depth)
        began = time.perf_counter_ns()
        if case.n_prompt:
            context.prefill(self._new[: case.n_prompt])
        for token in self._new[: case.n_gen]:
            context.decode(token)
        return time.perf_counter_ns() - began

    def _result(self, case: Case) -> Result:
        """The result of a case, without figures yet."""
        from ...jit.threads import n_threads

        model, setting = self._model, self._setting
        return Result(
            case,
            str(model.path),
            f"{model.file.architecture} {model.name}",
            sum(tensor.n_bytes for tensor in model.file.tensors.values()),
            model.file.n_parameters,
            on_engine(n_threads),
            setting.type_k,
            setting.type_v,
            "ram" if setting.folder is None else "disk",
            method_name(self._attend, setting.keep),
            called(setting.prefill),
            self._depth > self._n_read,
        )


def _method_figures(context: Context) -> tuple[float, float, float]:
    """For generated tokens and prompts so far: nanoseconds to choose and to attend, bytes of the
    index and of chosen rows."""
    layers = [*context.stats.layers, *context.stats.prompt_layers]
    return (
        sum(layer.index_seconds for layer in layers) * 1e9,
        sum(layer.attention_seconds for layer in layers) * 1e9,
        sum(layer.index_bytes + layer.attention_bytes for layer in layers),
    )
