"""Check every byte that a pack's commits name: its digest, and the numbers that have a range.

A digest says that bytes are those that were written, not that kvarn wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .....ops.arrays import F32, U8
from .....ops.attention.layout import SEGMENT, TILE
from .....ops.cpu import CPU
from ....methods import Progress
from ...base import StoreError
from ...finite import Flags, infinite_rows, infinite_tokens
from ..errors import PackError
from ..folder import PackFolder, State
from ..format import superblock
from ..format.log import KV, Place
from ..format.states import digest_of, read
from ..planes.plane import read_slot
from ..saved_slots import SavedSlots
from .columns import ColumnSegment, column_faults


def verify(path: Path, progress: Progress | None = None) -> list[str]:
    """One line for each fault; none if the pack is as it was written.

    Reads all of it, its parents' segments too. Raises `PackError` if the folder is not a pack or
    has another format; damage that prevents opening it is a line like any other.
    """
    return list(faults(path, progress))


def faults(path: Path, progress: Progress | None = None) -> Iterator[str]:
    """The lines of `verify`, one by one."""
    folder = PackFolder(path)
    try:
        folder.centre()
        if folder.manifest.slots is not None:
            yield from _slots(folder)
            return
        yield from _superblocks(folder)
        state = folder.state()
        yield from _hidden(folder, state.hidden)
        yield from _segments(folder, state, progress)
        yield from _checkpoints(folder, state)
        yield from _states(folder, state)
        yield from _rows(folder, state)
    except StoreError as error:
        yield str(error)


def check(path: Path) -> None:
    """`StoreError` with the first line of `verify`, if there is one."""
    for line in faults(path):
        raise StoreError(f"{line}: what follows from it is no answer, build it anew")


def _superblocks(folder: PackFolder) -> Iterator[str]:
    n_embd = folder.manifest.model.n_embd
    commits = [superblock.decode(data, n_embd) for data in folder.superblocks()]
    if commits[1] is None and commits[0] is not None and commits[0][0].sequence == 0:
        return  # nothing was committed since the pack was made
    for number, commit in enumerate(commits):
        if commit is None:
            yield f"pack {folder.path}: {superblock.NAME} is damaged in slot {number}"


def _hidden(folder: PackFolder, hidden: F32 | None) -> Iterator[str]:
    if hidden is not None and not np.isfinite(hidden).all():
        yield f"pack {folder.path}: the hidden state of its last token is not finite"


def _segments(folder: PackFolder, state: State, progress: Progress | None) -> Iterator[str]:
    places = [
        (place, plane, number)
        for plane, of_plane in state.tables.places.items()
        for number, place in enumerate(of_plane)
    ]
    for done, (place, plane, number) in enumerate(places, 1):
        n_bytes = folder.part_bytes(plane, state.tables.item_bytes.get(plane, 0))
        for file in range(len(place.digests)):
            try:
                data = np.frombuffer(read_slot(place, plane, file, n_bytes), np.uint8)
            except PackError as error:
                yield str(error)
                continue
            if plane == KV:
                tokens = infinite_tokens(data, folder.layout)
                layer = folder.whole_layers[file]  # a parent stores the same layers whole
                yield from _infinite(place.folder.path, layer, number * SEGMENT, tokens)
            else:
                n_segments = len(state.tables.places[plane])
                yield from _column(folder, place, plane, data, (number, n_segments))
        if progress is not None:
            progress(done, len(places))


def _column(
    folder: PackFolder, place: Place, name: str, data: U8, which: tuple[int, int]
) -> Iterator[str]:
    """which: number of the segment, and how many the column has."""
    model, number = folder.manifest.model, which[0]
    heads = data.reshape(model.n_layers * model.n_kv_heads, -1)
    for row, fault in column_faults(ColumnSegment(name, heads, model.head_dim, *which)):
        layer, head = divmod(row, model.n_kv_heads)
        where = f"index {name}, segment {number}, layer {layer}, KV head {head}"
        yield f"pack {place.folder.path}: {where}: {fault}"


def _checkpoints(folder: PackFolder, state: State) -> Iterator[str]:
    """The last tokens of some segments, in layers with a window."""
    for checkpoint in state.commit.checkpoints:
        try:
            data = np.frombuffer(folder.read_checkpoint(checkpoint), np.uint8)
        except PackError as error:
            yield str(error)
            continue
        rows = data.reshape(-1, folder.windowed_rows.n_bytes)
        first = (checkpoint.segment + 1) * SEGMENT - len(rows)
        yield from _rows_of(folder, rows, windowed=True, first=first)


def _states(folder: PackFolder, state: State) -> Iterator[str]:
    """Checkpoints of what layers carry besides K and V."""
    for slot in state.commit.states:
        try:
            numbers = read(folder, slot, folder.manifest.state_bytes)
        except PackError as error:
            yield str(error)
            continue
        if not np.isfinite(numbers).all():
            yield f"pack {folder.path}: the states after {slot.n_tokens:,} tokens are not finite"
        if slot.read != digest_of(state.tokens[: slot.n_tokens]):
            yield f"pack {folder.path}: the states after {slot.n_tokens:,} tokens are of others"


def _rows(folder: PackFolder, state: State) -> Iterator[str]:
    """The tokens after the full segments."""
    n_bytes, first = folder.rows.n_bytes, state.n_full * SEGMENT
    yield from _rows_of(folder, state.rows[:, :n_bytes], windowed=False, first=first)
    yield from _rows_of(folder, state.rows[:, n_bytes:], windowed=True, first=first)


def _rows_of(folder: PackFolder, rows: U8, *, windowed: bool, first: int) -> Iterator[str]:
    """rows: uint8 (tokens, bytes) of the layers with a window, or of the others; the first of them
    token `first`."""
    if not rows.size:
        return
    layers = folder.windowed_layers if windowed else folder.whole_layers
    whole = folder.layout, folder.manifest.model.n_kv_heads
    layout, n_kv_heads = folder.in_windows if windowed else whole
    by_head = rows.reshape(len(rows), len(layers), n_kv_heads, -1)
    for row, layer in enumerate(layers):
        k, v = infinite_rows(by_head[:, row], layout)
        yield from _infinite(folder.path, layer, first, (k.T, v.T))


def _infinite(
    path: Path, layer: int, first: int, tokens: tuple[Flags, Flags], unit: str = "token"
) -> Iterator[str]:
    """One line for K and one for V of a layer. tokens: which are not finite, bool (J, T), the
    first of them number `first`."""
    for side, wrong in zip("KV", tokens):
        if wrong.any():
            head, token = np.argwhere(wrong)[0].tolist()
            yield (
                f"pack {path}: {side} of layer {layer}, KV head {head}, {unit} {first + token} is "
                f"not finite (one of {int(wrong.sum()):,} in its segment)"
            )


def _slots(folder: PackFolder) -> Iterator[str]:
    """A context that evicts, whose tokens have slots."""
    model, store = folder.manifest.model, SavedSlots(folder)
    yield from _hidden(folder, store.saved.hidden)
    for layer in range(model.n_layers):
        places, item_bytes = store.segments(layer), folder.layout.tile_bytes // TILE
        for i in range(len(places)):
            items = CPU.read_items(places[i : i + 1], model.n_kv_heads, item_bytes)
            tokens = infinite_tokens(items.ravel(), folder.layout)
            yield from _infinite(folder.path, layer, i * SEGMENT, tokens, "slot")
