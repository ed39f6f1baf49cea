"""`Disk`: the options of a KV cache on disk, and opening its pack for a context."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar, get_args

import numpy as np

from ....ops.attention.layout import KV_TYPES, layout_of
from ....system.spelling import spelt
from ...methods import option
from ..base import SlotPlan, StoreError
from ..centre import has_centre, mean_keys
from ..facts import PrefillFacts
from ..method import Store
from ..states import states_of
from ..windowed import windows_of
from .contents import create
from .errors import PackError, check_place, checked_path, opening
from .folder import PackFolder
from .format.manifest import NAME, Manifest
from .format.parts_text import check_no_parts
from .info import pack_head
from .models import check_model, facts_of
from .parents import ParentStart, start_from
from .planes.plane import Io
from .slots import DiskSlots
from .store import DiskStore

if TYPE_CHECKING:
    from ...loading.model_info import ModelInfo
    from ..facts import PackHead


S = TypeVar("S", DiskStore, DiskSlots)


@dataclass(frozen=True)
class Disk(Store):
    """A KV cache in the context pack `path`, which is made if it is missing.

    k, v: stored types, "f16", "q8_0" or "q4_0"; None: the pack's, or f16 for a new one.
    read_only: nothing is written, new tokens stay in memory; others may read and write the pack.
    io: see `plane.Io`. goal: tokens a new pack is to hold when complete, for `pack info`.
    parent: a new pack shares the full segments of this one and stores only what follows; n_shared:
    it begins with so many of its tokens (None: with all), or fewer where layers with a window lack
    those before that place. late: what a new pack copies of a parent is saved with what it reads
    first, so that it opens faster; killed before, it has the full segments alone. prefill: how what
    it stores is read; a context sets it.
    """

    name: ClassVar[str] = "disk"
    summary: ClassVar[str] = "in the folder of a context pack, which outlasts the process"

    path: str | Path
    k: str | None = None
    v: str | None = None
    read_only: bool = False
    io: Io = option(  # noqa: RUF009 - a field
        "mmap",
        "how packs are read: mapped, or read into memory first, for media that may fail or vanish",
        choices=get_args(Io),
    )
    goal: int = 0
    parent: str | Path | None = None
    prefill: PrefillFacts | None = None
    n_shared: int | None = None
    late: bool = False

    def __post_init__(self) -> None:
        checked_path(self.path)
        for side, name in (("K", self.k), ("V", self.v)):
            if name is not None and name not in KV_TYPES:
                known = ", ".join(KV_TYPES)
                raise StoreError(f"KV cache: unknown type {name!r} for {side}; use one of {known}")

    def head(self) -> PackHead | None:
        """The facts of the pack, or of the one that a new pack begins with. Raises `PackError`
        where a pack that is followed is missing or empty, or a file is where a new one goes."""
        if not self.follows_pack:
            if (pack := self._existing()) is not None:
                return pack_head(pack)
            check_place(Path(self.path))
            return None
        pack = Path(self.path if self.read_only or self.parent is None else self.parent)
        head = pack_head(pack)
        if not head.n_tokens:
            raise PackError(pack, "it is empty: build it first")
        return head

    @property
    def follows_pack(self) -> bool:
        return self.read_only or (self.parent is not None and self._existing() != Path(self.path))

    def _existing(self) -> Path | None:
        """The folder of the pack, or else of the one that a new pack begins with, if it exists."""
        places = (self.path, self.parent)
        folders = [Path(place) for place in places if place is not None]
        return next((folder for folder in folders if (folder / NAME).exists()), None)

    def recorded_prefill(self) -> PrefillFacts | None:
        """The prefill that is recorded in the pack to be written, if it exists."""
        path = Path(self.path)
        with opening(path):
            if self.read_only or not (path / NAME).exists():
                return None
            return Manifest.read(path).prefill

    def types(self) -> tuple[str, str]:
        pack = self._existing()
        if pack is None:
            return self.k or "f16", self.v or "f16"
        with opening(Path(self.path)):
            manifest = Manifest.read(pack)
            return self.k or manifest.k_type, self.v or manifest.v_type

    def for_prefill(self, facts: PrefillFacts | None) -> Disk:
        return replace(self, prefill=None if self.read_only else facts)

    def open(self, model: ModelInfo, n_ctx: int) -> DiskStore:
        """The store; raises `PackError` if the pack cannot be used with this model."""
        with opening(Path(self.path)):
            start = self._create_missing(model, n_ctx)
            folder = self._folder(model, n_ctx)
            store = DiskStore(folder, self.io, states_of(model.config))
            if self.parent is not None and store.is_fresh:
                above, state, _ = start or start_from(Path(self.parent), self.n_shared)
                store.adopt(above, state, late=self.late)
            store.centre = folder.centre()
            return _with_known_tokens(store, folder.path, model)

    def open_slots(self, model: ModelInfo, n_ctx: int, slots: SlotPlan) -> DiskSlots:
        """The store of a context that evicts; raises `PackError` as `open` does, and if the pack
        was made with another keep method or other options."""
        path = Path(self.path)
        if self.parent is not None:
            raise PackError(path, "a context that evicts cannot begin with another pack")
        with opening(path):
            self._create_missing(model, n_ctx, slots)
            folder = self._folder(model, n_ctx, slots)
            store = DiskSlots(folder, states_of(model.config))
            store.centre = folder.centre()
            return _with_known_tokens(store, path, model)

    def _create_missing(
        self, model: ModelInfo, n_ctx: int, slots: SlotPlan | None = None
    ) -> ParentStart | None:
        """Make the pack if it is missing; returns what a new one begins with, if it does."""
        path = Path(self.path)
        if self.read_only or (path / NAME).exists():
            return None
        return self._create(path, model, _is_long(model, n_ctx, slots), slots)

    def _folder(self, model: ModelInfo, n_ctx: int, slots: SlotPlan | None = None) -> PackFolder:
        """The pack's folder, checked."""
        path = Path(self.path)
        folder = PackFolder(path, writable=not self.read_only)
        self._check(path, folder.manifest, model, _is_long(model, n_ctx, slots), slots)
        if not self.read_only:  # now that its lock is held
            check_no_parts(path)
        return folder

    def _create(
        self, path: Path, model: ModelInfo, long_rope: bool, slots: SlotPlan | None
    ) -> ParentStart | None:
        k, v = self.k or "f16", self.v or "f16"
        layout_of(model.config.head_dim, k, v)  # refuses types before a folder is made
        states = states_of(model.config)
        manifest = Manifest(
            facts_of(model),
            k,
            v,
            long_rope,
            None,
            self.goal,
            slots,
            prefill=self.prefill,
            state_bytes=0 if states is None else states.memory.nbytes,
        )
        if self.parent is None:
            windows = windows_of(model.config) if slots is None else ()
            means = mean_keys(model) if has_centre(model.config, k) else None
            create(path, replace(manifest, windows=windows), means)
            return None
        start = start_from(Path(self.parent), self.n_shared)
        above, state, parent = start
        inherited = above.manifest
        self._check(above.path, inherited, model, long_rope)
        manifest = replace(
            manifest,
            k_type=inherited.k_type,
            v_type=inherited.v_type,
            parent=parent,
            windows=inherited.windows,
        )
        create(path, manifest, above.centre(), state.recent)
        return start

    def check(self, model: ModelInfo, n_ctx: int) -> None:
        """Raise `PackError` if the pack, which exists, cannot be gone on with as asked."""
        path = Path(self.path)
        self._check(path, Manifest.read(path), model, _is_long(model, n_ctx, None))

    def _check(
        self,
        path: Path,
        manifest: Manifest,
        model: ModelInfo,
        long_rope: bool,
        slots: SlotPlan | None = None,
    ) -> None:
        if manifest.slots != slots:
            kept, asked = manifest.slots or "all tokens", slots or "all tokens"
            raise PackError(
                path,
                f"it was made to keep {kept}, asked for is {asked}: give the same {spelt('keep')}, "
                f"{spelt('keep_budget')} and {spelt('ctx')}, or make another pack",
            )
        if not self.read_only and path == Path(self.path) and manifest.prefill != self.prefill:
            read, wanted = manifest.prefill or "exact", self.prefill or "exact"
            raise PackError(
                path,
                f"its prompts were read with {spelt('prefill')} {read}, and {wanted} is asked for: "
                f"omit the {spelt('prefill')} options, or make another pack",
            )
        check_model(path, manifest.model, model)
        layers = zip(manifest.windows, model.config.kv_layers)
        if any(window and not 0 < (layer.window or 0) <= window for window, layer in layers):
            raise PackError(
                path, "this model's layers have longer windows than it was made for: make another"
            )
        k, v = self.k or manifest.k_type, self.v or manifest.v_type
        if (k, v) != (manifest.k_type, manifest.v_type):
            raise PackError(
                path,
                f"its KV cache is K {manifest.k_type}, V {manifest.v_type}, asked for is K {k}, "
                f"V {v}: omit {spelt('kv_type')}, or make another pack",
            )
        if manifest.long_rope != long_rope:
            sides = ("beyond", "up to") if manifest.long_rope else ("up to", "beyond")
            raise PackError(
                path,
                f"it was made for contexts {sides[0]} {model.config.n_ctx_orig} tokens, asked for "
                f"is one {sides[1]} that length, with other rope factors: change {spelt('ctx')}, "
                "or make another pack",
            )


def _is_long(model: ModelInfo, n_ctx: int, slots: SlotPlan | None) -> bool:
    """Whether positions are rotated as those of a long context, where that differs."""
    config = model.config
    # A context that evicts has no end: it is rotated as a long one from the start.
    long = slots is not None or n_ctx > config.n_ctx_orig
    return config.rope_tensors == "longrope" and long


def _with_known_tokens(store: S, path: Path, model: ModelInfo) -> S:
    """The store; `PackError` if it holds ids that the model does not have."""
    if np.asarray(store.saved.tokens).max(initial=0) >= model.config.n_vocab:
        raise PackError(path, "it holds token ids outside the model's vocabulary")
    return store
