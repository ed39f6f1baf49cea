"""One text, whose blocks any number of processes and machines read into one pack at once.

`--prefill blocks` reads each block of a text apart from the others, but for the first tokens of the
text. So processes need not wait for each other: each takes the next block that no other one reads,
and reads it as a part of the pack (`store.disk.parts`). One that finds all parts whole joins them,
and goes on as a single process does after the last block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...ops.attention.layout import SEGMENT
from ..prefill import BlocksPrefill, PrefillError
from ..store import Disk, PackBusy, PackError
from ..store.disk.errors import PackInParts
from ..store.disk.folder import PackFolder
from ..store.disk.format.manifest import NAME as MANIFEST
from ..store.disk.format.parts_text import parts_folder, parts_text
from ..store.disk.info import pack_head
from ..store.disk.parts import Part, begin_parts, check_untouched, join, remove_parts, sharing
from ..store.states import states_of
from .notes import attempt, digest_of
from .pack import build_pack, check_begins, text_ids
from .texts import ReadCounter

if TYPE_CHECKING:
    from ..context import Context, Progress
    from ..model import Model
    from ..store.facts import PackInfo

    BeginPart = Callable[[str, Context], Progress]

T = TypeVar("T")
_WAIT_SECONDS = 0.5
"""Between two looks at what other processes write."""
_NOTICE_AFTER = 10
"""Looks after which a user is told."""


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
    tokens, models with layers that have a window unless `prefill` has windows "stop", and those
    with layers that carry a state from one block to the next.
    """
    blocks = TextBlocks(model, store, text, prefill, n_ctx, begin)
    ids, disk = blocks.ids, blocks.disk
    tell = partial(model.tell, f"{disk.path}: waiting for what other processes read")
    if blocks.are_apart:
        retry_while_busy(blocks.read, tell)
        remove_parts(blocks.path)
    rest = blocks.add_counter("the rest")

    def opened(context: Context) -> None:
        if len(context.tokens) < len(ids):
            rest.on_open(context)

    pack = retry_while_busy(
        lambda: build_pack(model, disk, ids, n_ctx, prefill, rest.report, opened), tell
    )
    return pack, blocks.n_read


def retry_while_busy(work: Callable[[], T], tell: Callable[[], None] = lambda: None) -> T:
    """What `work` returns, which is called again while other processes are at it. tell: called
    once, after some seconds."""
    n_waits = 0
    while True:
        try:
            return work()
        except PackBusy:
            n_waits += 1
            if n_waits == _NOTICE_AFTER:
                tell()
            time.sleep(_WAIT_SECONDS)


def check_size(prefill: BlocksPrefill) -> None:
    """`PrefillError` for blocks that are no whole segments of a pack."""
    if prefill.size % SEGMENT:
        raise PrefillError(
            f"blocks of {prefill.size:,} tokens cannot be read by several processes: expected a "
            f"multiple of {SEGMENT:,}"
        )


def _check(model: Model, prefill: BlocksPrefill) -> None:
    check_size(prefill)
    windows = any(layer.window for layer in model.config.kv_layers)
    if windows and prefill.windows == "across":
        raise PrefillError(
            f"{model.name} has layers that read a window, across the borders of blocks: add "
            "--prefill-windows stop, so that windows stop there, or omit --each-block"
        )
    if states_of(model.config) is not None:
        raise PrefillError(
            f"{model.name} has layers that carry a state from block to block: its blocks can only "
            "be read one after another, by one process (without --each-block)"
        )


class TextBlocks:
    """The blocks of one text, as one process sees them. Takes and raises what
    `build_pack_in_blocks` does."""

    def __init__(
        self,
        model: Model,
        store: Disk | str | Path,
        text: str | Sequence[int],
        prefill: BlocksPrefill,
        n_ctx: int | None,
        begin: BeginPart | None,
    ) -> None:
        _check(model, prefill)
        self.ids = text_ids(model, text, n_ctx)
        disk = store if isinstance(store, Disk) else Disk(store)
        self.disk = replace(disk, goal=len(self.ids))
        self.path = Path(disk.path).resolve()  # its name tells parts where it is
        self.are_apart = prefill.n_apart(len(self.ids)) >= prefill.size + SEGMENT
        self._model, self._prefill, self._begin_part = model, prefill, begin
        self._n_ctx = n_ctx or model.config.n_ctx_train
        self._digest = digest_of(self.ids)
        self._counters: list[ReadCounter[str]] = []
        self._read: set[Path] = set()

    @property
    def n_read(self) -> int:
        """Tokens that this process has read."""
        return sum(reading.n_read for reading in self._counters)

    def add_counter(self, name: str) -> ReadCounter[str]:
        """What counts the tokens that this process reads of a block."""
        self._counters.append(ReadCounter(name, self._begin_part))
        return self._counters[-1]

    def read(self) -> None:
        """Read blocks until all are read, and join them. Raises `PackBusy` where there is none left
        to take but others are at work."""
        with self.parts() as parts:
            are_read = [self.read_part(part) for part in parts.values()]
            if not all(are_read):
                raise PackBusy(self.path)
        if parts:
            join(self.path, [Path(part.path) for part in parts.values()], self.ids)

    @contextmanager
    def parts(self) -> Iterator[dict[str, Part]]:
        """The parts of the pack by the names of their blocks, while nothing but parts may be
        written; none of a short text, and where they are joined. Reads the first tokens if no
        process has."""
        if not self.are_apart:
            yield {}
            return
        self._begin()
        with sharing(self.path):
            commit, text = PackFolder(self.path).last_commit(), parts_text(self.path)
            n_apart, parts = commit.n_apart or 0, list[Part]()
            if commit.n_tokens < _in_segments(n_apart):
                text = check_untouched(self.path, text, commit)
                parts = self._parts(text.n_segments * SEGMENT, n_apart)
            yield {self._name(part): part for part in parts}

    def _begin(self) -> None:
        """Read the first segment, which all blocks need, if no process has."""
        text = parts_text(self.path)
        if text is not None:
            if text.digest != self._digest:
                raise PackError(
                    self.path, "it is read from another text: choose another name or remove it"
                )
            return
        try:
            context = self._model.context(self._n_ctx, store=self.disk, prefill=self._prefill)
        except PackInParts:  # another process was faster
            return self._begin()
        with context:
            check_begins(context, self.ids)
            done = len(context.tokens)
            steps, reading = context.reading(self.ids[done:]), self.add_counter("the first tokens")
            if done >= _in_segments(context.store.n_apart or 0):
                return
            reading.on_open(context)
            while len(context.tokens) < SEGMENT:
                steps.step()
                reading.report(len(context.tokens) - done, SEGMENT - done)
            context.commit()
            begin_parts(PackFolder(self.path), self._digest)

    def _parts(self, n_held: int, n_apart: int) -> list[Part]:
        """The blocks that follow the tokens of the pack, all but the last segment's. Raises
        `PackError` for a pack of another model, or that is read in another way."""
        disk, size, info = self.disk, self._prefill.size, self._model.info
        facts, stop = self._prefill.resolved(info).facts(info), _in_segments(n_apart)
        Disk(self.path, disk.k, disk.v, prefill=facts).check(info, self._n_ctx)
        return [
            Part(
                parts_folder(self.path) / f"{first // size:05}",
                disk.k,
                disk.v,
                io=disk.io,
                goal=min(first + size, stop),
                pack=self.path,
                first=max(first, n_held),
                n_apart=n_apart,
            )
            for first in range(n_held // size * size, stop, size)
        ]

    def read_part(self, part: Part) -> bool:
        """Read a block unless it was read; whether all of it is read."""
        path = Path(part.path)
        if path in self._read:
            return True
        try:
            if not (path / MANIFEST).exists() or not pack_head(path).complete:
                with attempt(path, f"block {self._number(part)} of {self.path}") as work:
                    work.digest = self._digest
                    self._read_tokens(part)
        except PackBusy:
            return False
        self._read.add(path)
        return True

    def _number(self, part: Part) -> str:
        """Which block it is, from 1 on."""
        return f"{part.first // self._prefill.size + 1:,}"

    def _name(self, part: Part) -> str:
        n_blocks = -(-part.n_apart // self._prefill.size)
        return f"block {self._number(part)} of {n_blocks:,}"

    def _read_tokens(self, part: Part) -> None:
        apart = replace(self._prefill, rest="exact")
        with self._model.context(self._n_ctx, store=part, prefill=apart) as context:
            done = len(context.tokens)
            if context.tokens[part.first :] != list(self.ids[part.first : done]):
                raise PackError(Path(part.path), "it holds tokens of another text: remove it")
            if done < part.goal:
                reading = self.add_counter(self._name(part))
                reading.on_open(context)
                context.prefill(self.ids[done : part.goal], reading.report)


def _in_segments(n_tokens: int) -> int:
    """Tokens of whole segments."""
    return n_tokens // SEGMENT * SEGMENT
