"""One text, whose blocks any number of processes and machines read into one pack at once.

`--prefill blocks` reads each block of a text apart from the others, but for the first tokens of the
text. So processes need not wait for each other: each takes the next block that no other one reads,
and reads it as a part of the pack (`store.disk.parts`). One that finds all parts whole joins them,
and goes on as a single process does after the last block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...ops.attention.layout import SEGMENT
from ..packs import build_pack, check_begins, text_ids
from ..prefill import BlocksPrefill, PrefillError
from ..store import Disk, PackBusy, PackError
from ..store.disk.folder import PackFolder
from ..store.disk.format.manifest import NAME as MANIFEST
from ..store.disk.info import pack_head
from ..store.disk.parts import (
    Part,
    begin_parts,
    join,
    parts_folder,
    parts_text,
    remove_parts,
    sharing,
)
from ..store.states import states_of
from .notes import attempt, digest_of

if TYPE_CHECKING:
    from ..context import Context, Progress
    from ..model import Model
    from ..store.facts import PackInfo

    BeginPart = Callable[[str, Context], Progress]

T = TypeVar("T")
_WAIT_SECONDS = 0.5
"""Between two looks at what other processes write."""


def build_pack_in_blocks(
    model: Model,
    store: Disk | str | Path,
    text: str | Sequence[int],
    prefill: BlocksPrefill,
    n_ctx: int | None = None,
    begin: BeginPart | None = None,
) -> tuple[PackInfo, int]:
    """Read a text, or the ids of one, into a pack, as `build_pack` does with the same `prefill`,
    bit for bit; any number of processes may do this at once. Returns when all is read: the pack,
    and how many tokens this process has read.

    They take the blocks one by one. The last one reads what follows the last whole block. A text of
    less than two blocks is read by one of them. store, n_ctx: as in `build_pack`. begin: called
    before this process reads a block, or the rest, with its name, for the function that is told of
    its progress. Raises what `build_pack` raises; `PrefillError` for blocks of no multiple of 1,024
    tokens, and models whose blocks depend on each other: those with layers that have a window or
    carry a state.
    """
    _check(model, prefill)
    ids = text_ids(model, text, n_ctx)
    disk = replace(store if isinstance(store, Disk) else Disk(store), goal=len(ids))
    counted = _Counted(begin)
    if prefill.n_apart(len(ids)) >= 2 * prefill.size:
        blocks = _Blocks(model, disk, ids, prefill, n_ctx or model.config.n_ctx_train, counted)
        waiting(blocks.read)
        remove_parts(blocks.path)

    def opened(context: Context) -> None:
        if len(context.tokens) < len(ids):
            counted.begin("the rest", context)

    def rest() -> PackInfo:
        return build_pack(model, disk, ids, n_ctx, prefill, counted, opened)

    return waiting(rest), counted.n_read


def waiting(work: Callable[[], T]) -> T:
    """What `work` returns, which is called again while other processes are at it."""
    while True:
        try:
            return work()
        except PackBusy:
            time.sleep(_WAIT_SECONDS)


def _check(model: Model, prefill: BlocksPrefill) -> None:
    if prefill.size % SEGMENT:
        raise PrefillError(
            f"blocks of {prefill.size:,} tokens cannot be read by several processes: expected a "
            f"multiple of {SEGMENT:,}"
        )
    kind = ""
    if any(layer.window for layer in model.config.kv_layers):
        kind = "layers that read a window, across the borders of blocks"
    if states_of(model.config) is not None:
        kind = "layers that carry a state from block to block"
    if kind:
        raise PrefillError(
            f"{model.name} has {kind}: its blocks can only be read one after another, by one "
            "process (without --each-block)"
        )


class _Counted:
    """Counts the tokens that this process reads, and passes their progress on."""

    def __init__(self, begin: BeginPart | None) -> None:
        self._begin, self._before, self._done = begin, 0, 0
        self.tell: Progress | None = None

    @property
    def n_read(self) -> int:
        return self._before + self._done

    def begin(self, name: str, context: Context) -> None:
        """The context reads a block, or the rest."""
        self._before, self._done = self.n_read, 0
        self.tell = None if self._begin is None else self._begin(name, context)

    def __call__(self, done: int, total: int) -> None:
        self._done = done
        if self.tell is not None:
            self.tell(done, total)


@dataclass
class _Blocks:
    """The blocks of one text, as one process sees them."""

    model: Model
    disk: Disk
    ids: Sequence[int]
    prefill: BlocksPrefill
    n_ctx: int
    counted: _Counted
    _whole: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.path, self._digest = Path(self.disk.path), digest_of(self.ids)

    def read(self) -> None:
        """Read blocks until all are read, and join them. Raises `PackBusy` where there is none left
        to take but others are at work."""
        self._begin()
        with sharing(self.path):
            commit, text = PackFolder(self.path).last_commit(), parts_text(self.path)
            n_apart = commit.n_apart or 0
            if commit.n_tokens >= n_apart:  # they are joined
                return
            if text is None:
                raise PackBusy(self.path)  # another process begins anew
            firsts = range(0, n_apart, self.prefill.size)
            left = [i for i in firsts if i + self.prefill.size > text.n_segments * SEGMENT]
            n_held = text.n_segments * SEGMENT
            free = [self._read_block(max(i, n_held), n_apart) for i in left]
        if not all(free):
            raise PackBusy(self.path)
        join(self.path, [self._part(max(i, n_held)) for i in left], self.ids)

    def _begin(self) -> None:
        """Read the first segment, which all blocks need, if no process has."""
        text = parts_text(self.path)
        if text is not None:
            if text.digest != self._digest:
                raise PackError(
                    self.path, "it is read from another text: choose another name or remove it"
                )
            return
        with self.model.context(self.n_ctx, store=self.disk, prefill=self.prefill) as context:
            check_begins(context, self.ids)
            done, store = len(context.tokens), context.store
            reading = context.reading(self.ids[done:])
            if done >= (store.n_apart or 0) or parts_text(self.path) is not None:
                return  # another process was faster
            self.counted.begin("the first tokens", context)
            while len(context.tokens) < SEGMENT:
                reading.step()
                self.counted(len(context.tokens) - done, SEGMENT - done)
            context.commit()
            begin_parts(PackFolder(self.path), self._digest)

    def _part(self, first: int) -> Path:
        return parts_folder(self.path) / f"{first // self.prefill.size:05}"

    def _read_block(self, first: int, n_apart: int) -> bool:
        """Read a block from the token `first` on, unless it was read; whether all of it is read."""
        part, number = self._part(first), first // self.prefill.size
        if number in self._whole:
            return True
        try:
            if not (part / MANIFEST).exists() or not pack_head(part).complete:
                with attempt(part, str(self.path)) as work:
                    work.digest = self._digest
                    self._read_part(part, first, n_apart)
        except PackBusy:
            return False
        self._whole.add(number)
        return True

    def _read_part(self, path: Path, first: int, n_apart: int) -> None:
        number, disk = first // self.prefill.size, self.disk
        stop = (number + 1) * self.prefill.size
        info = self.model.info
        recorded = self.prefill.resolved(info).facts(info)
        part = Part(
            path,
            disk.k,
            disk.v,
            io=disk.io,
            goal=stop,
            pack=self.path,
            first=first,
            n_apart=n_apart,
            recorded=recorded,
        )
        apart = replace(self.prefill, rest="exact")
        with self.model.context(self.n_ctx, store=part, prefill=apart) as context:
            done = len(context.tokens)
            if context.tokens[first:] != list(self.ids[first:done]):
                raise PackError(path, "it holds tokens of another text: remove it")
            if done < stop:
                name = f"block {number + 1:,} of {n_apart // self.prefill.size:,}"
                self.counted.begin(name, context)
                context.prefill(self.ids[done:stop], self.counted)
