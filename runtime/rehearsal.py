"""Rehearsals: short runs of what a model can do, which compile the kernels that it needs.

A rehearsal uses the feature itself and not a list of its kernels, so that the two cannot differ.
Contexts are filled rather than read (`Context.fill`): it takes a second once kernels are compiled.
Which kernels were used is then kept beside them, for models of the same sizes and types:

    rehearsed-<hash of rehearsal, model, sources>.names   names of files, each followed by a newline
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..models import ModelConfig
from ..models.tensors import re_encoded_bytes, repacked_bytes
from .attend import ATTENDS, Attend, Full
from .attend.encoders.sidecar import sidecar_path
from .gguf import open_gguf
from .keep import KEEPS, Keep, KeepAll
from .loading.adapter_files import AdapterFile
from .loading.load import load
from .methods import called
from .prefill import PREFILLS, Exact, Prefill
from .store import Ram
from .store.base import types_text

if TYPE_CHECKING:
    from ..jit.launch import LazyKernel
    from .context import Context
    from .model import Model

N_READ = 40
"""Tokens of a prompt: enough for the kernels of many rows."""
N_FILLED = 1100
"""Tokens that a sparse method chooses from: a full segment, and an open one."""
N_EVICTING = 96
"""Tokens that go through a keep method of 48 slots."""
SLOTS = 48

KvTypes = tuple[str, str]


@dataclass(frozen=True)
class Rehearsal:
    """One feature of a model file; calling it runs the feature. It can be sent to a process."""

    name: str
    path: Path
    run: Callable[[Context], None]
    kv: KvTypes = ("f16", "f16")
    attend: Attend = Full()  # noqa: RUF009 - frozen, without fields
    keep: Keep = KeepAll()  # noqa: RUF009
    prefill: Prefill = Exact()  # noqa: RUF009
    lora: tuple[AdapterFile, ...] = ()

    @property
    def n_bytes(self) -> int:
        """Memory that a process needs for the model's matrices."""
        tensors = open_gguf(self.path).tensors
        return repacked_bytes(tensors) + re_encoded_bytes(tensors)

    def __call__(self, model: Model | None = None) -> None:
        """Run with the file's model, loaded or not, and keep which kernels that used."""
        from ..jit import kernel_cache

        model = model or _model(self.path, self.lora)
        self.rehearse(model)
        # With those that this process has used before: which ones these need, nobody knows.
        names = sorted(name for name in kernel_cache.Counts.names if name.endswith(".code"))
        kernel_cache.keep(self._record(model), "".join(f"{name}\n" for name in names).encode())

    def find_kernels(self, find: Callable[[LazyKernel], None]) -> None:
        """Call `find` with each kernel that is missing, and compile none. From now on, launches of
        this process run nothing."""
        from ..jit.launch import collecting

        with collecting(find):
            self.rehearse(_model(self.path, self.lora))

    def rehearse(self, model: Model) -> None:
        """Run with a model."""
        n_ctx = 2 * N_EVICTING if self.keep.evicts(N_FILLED) else N_FILLED + N_READ
        store = Ram(*self.kv)
        with (
            model.silenced(),
            model.context(n_ctx, self.attend, self.keep, store, self.prefill) as context,
        ):
            self.run(context)

    def is_compiled(self, model: Model) -> bool:
        """Whether it has run and its kernels are in the cache. Looks for names of files."""
        from ..jit import kernel_cache  # imports llvmlite

        names = kernel_cache.find(self._record(model), lambda data: data.decode().splitlines())
        return names is not None and kernel_cache.has(names)

    def _record(self, model: Model) -> str:
        """The name of the file that keeps which kernels it used."""
        from ..jit.kernel_cache import sources

        feature = self.run.__name__, self.kv, self.attend, self.keep, self.prefill
        made_of = sources.digest(sources.ALL)
        digest = hashlib.sha256(repr((feature, model.config, _sizes(model), made_of)).encode())
        return f"rehearsed-{digest.hexdigest()[:40]}.names"


def read_prompt(context: Context) -> None:
    """The kernels for many rows."""
    context.prefill(_ids(context, N_READ))


def generate(context: Context) -> None:
    """The kernels for one row."""
    for token in _ids(context, 2):
        context.decode(token)


def read_few(context: Context) -> None:
    """The kernels for a few rows, which short prompts and drafts use."""
    token, *others = _ids(context, 8)
    for n in (1, 2, 3, 7):
        context.prefill(others[:n])
        context.decode(token, others[:n])


def generate_deep(context: Context) -> None:
    """A choice among the tokens of a filled context."""
    read_prompt(context)
    context.fill(N_FILLED)
    generate(context)
    context.rehearse()


def read_deep(context: Context) -> None:
    """A prompt in a filled context, whose tokens choose what they read."""
    read_prompt(context)
    context.fill(N_FILLED)
    read_prompt(context)
    context.rehearse()


def evict(context: Context) -> None:
    """A prompt and generated tokens that replace others."""
    context.prefill(_ids(context, N_EVICTING))
    generate(context)


def rehearsals(
    path: Path,
    kv: KvTypes,
    attends: Sequence[Attend] = (),
    keeps: Sequence[Keep] = (),
    prefills: Sequence[Prefill] = (),
    lora: tuple[AdapterFile, ...] = (),
) -> list[Rehearsal]:
    """A rehearsal of each thing that contexts with these methods do, the longest first; lora: the
    model's adapters."""
    choosing = [attend for attend in attends if attend.selects]
    evicting = [keep for keep in keeps if keep.shortened(SLOTS).evicts(N_FILLED)]
    over_slots = [attend for attend in choosing if not attend.needs_all_tokens]

    def feature(name: str, run: Callable[[Context], None], **methods: Any) -> Rehearsal:
        return Rehearsal(f"{name}, {types_text(*kv)}", path, run, kv, lora=lora, **methods)

    features = [
        *(feature(called(a), generate_deep, attend=a.shortened()) for a in choosing),
        *(feature(f"keep {called(k)}", evict, keep=k.shortened(SLOTS)) for k in evicting),
        *(  # over the slots of one keep method: others use the same kernels
            feature(f"{called(a)} over slots", evict, attend=a.shortened(), keep=k.shortened(SLOTS))
            for k in evicting[:1]
            for a in over_slots
        ),
        *(
            feature(f"prefill {called(p)}", read_deep, prefill=p.shortened())
            for p in prefills
            if p != Exact()
        ),
        feature("prompts", read_prompt),
        feature("generation", generate),
        feature("short prompts and drafts", read_few),
    ]
    unique: dict[tuple[Any, ...], Rehearsal] = {}
    for task in features:
        unique.setdefault((task.attend, task.keep, task.prefill, task.run), task)
    return list(unique.values())


def all_rehearsals(path: Path, kv_types: Sequence[KvTypes]) -> list[Rehearsal]:
    """The rehearsals of all registered methods that serve the model, for these KV types."""
    attends = [variant for method in ATTENDS.values() for variant in method.variants()]
    keeps = [variant for method in KEEPS.values() for variant in method.variants()]
    if not ModelConfig.from_metadata(open_gguf(path).metadata).one_geometry:
        keeps = []  # see `cache.opening`
    prefills = [variant for method in PREFILLS.values() for variant in method.variants()]
    return [task for kv in kv_types for task in rehearsals(path, kv, attends, keeps, prefills)]


def _ids(context: Context, n: int) -> list[int]:
    return [(1 + i) % context.model.config.n_vocab for i in range(n)]


def _sizes(model: Model) -> tuple[object, ...]:
    """What kernels depend on, beside the configuration: tensors, and encoders of signatures."""
    file, sidecar = model.file, sidecar_path(model.path)
    tensors = sorted({(tensor.type.name, tuple(tensor.shape)) for tensor in file.tensors.values()})
    encoders = [file.metadata.get(f"kvarn.hash.{name}") for name in ("bits", "hidden")]
    beside = sidecar.stat() if sidecar.exists() else None
    sizes = tensors, encoders, beside and (beside.st_size, beside.st_mtime_ns)
    return (*sizes, "adapted") if model.adapters else sizes


@cache
def _model(path: Path, lora: tuple[AdapterFile, ...]) -> Model:
    return load(path, threads=1, lora=lora)
