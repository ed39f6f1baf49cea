"""What a new pack begins with: the first tokens of another pack's last commit.

Full segments are shared, as long as that makes no long chain of packs: each one of a chain is
opened with each context (0.3 ms, and a descriptor for each layer). The tokens after them, and what
a shorter chain does not have, are copied.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ....ops.arrays import U8
from ....ops.attention.layout import SEGMENT, n_segments
from .errors import PackDamaged
from .folder import PackFolder, State
from .format.checkpoints import newest_end
from .format.log import KV
from .format.manifest import Parent
from .format.superblock import Pin, Tail
from .planes.plane import read_slot

MOST_DEPTH = 8
"""Packs that one begins with. A new one that would have more shares what half as many have."""


def max_copied_bytes(folder: PackFolder) -> int:
    """The most bytes that a pack copies of one that it begins with, where the chain is short."""
    n_bytes = SEGMENT * folder.tail_row_bytes + 2 * folder.manifest.state_bytes
    return (
        n_bytes + 2 * n_segments(max(folder.manifest.windows, default=0)) * folder.checkpoint_bytes
    )


def depth_of(folder: PackFolder) -> int:
    """How many packs a pack begins with."""
    return 0 if folder.parent is None else 1 + depth_of(folder.parent)


class ParentStart(NamedTuple):
    """A pack, the state of it that a new one begins with, and what that shares."""

    above: PackFolder
    state: State
    parent: Parent | None


def start_from(path: Path, n_tokens: int | None) -> ParentStart:
    """What a new pack begins with, if it begins with the one in `path`.

    n_tokens: it begins with so many, or fewer; None: with all.
    """
    folder = PackFolder(path)
    state = folder.state(recent=True)
    if n_tokens is not None:
        state = truncated(folder, state, n_tokens)
    parent = shared_segments(folder, state)
    n_shared = parent.n_segments if parent else 0
    if folder.windowed_layers and n_shared < state.n_full:
        # The tokens before the segments that would be copied are nowhere, in layers with a window.
        state = truncated(folder, state, n_shared * SEGMENT)
        parent = shared_segments(folder, state)
    return ParentStart(folder, state, parent)


def truncated(folder: PackFolder, state: State, n_tokens: int) -> State:
    """The state after the first `n_tokens` tokens of `state`, which is the folder's and has
    `recent`; of fewer, where layers with a window do not have the tokens before that place.

    Raises `PackDamaged` if a segment is not as written.
    """
    if n_tokens >= len(state.tokens):
        return state
    n_full = n_tokens // SEGMENT
    if n_full == state.n_full:
        rows, recent = state.rows, state.recent
    elif folder.windowed_layers:
        n_tokens, rows, recent = _with_windows(folder, state, n_tokens)
        n_full = n_tokens // SEGMENT
    else:
        segment = np.frombuffer(segment_bytes(folder, state, KV, n_full), np.uint8)
        rows, recent = folder.rows.gather(segment, 0, n_tokens % SEGMENT), state.recent
    rows = rows[: n_tokens - n_full * SEGMENT]
    state.tables.cut(n_full)
    n_prompt = min(state.commit.n_prompt, n_tokens)
    commit = replace(state.commit, n_tokens=n_tokens, n_prompt=n_prompt)
    return replace(
        state,
        commit=commit,
        rows=rows,
        tokens=state.tokens.first(n_tokens),
        hidden=None,
        recent=recent,
    )


def _with_windows(folder: PackFolder, state: State, n_tokens: int) -> tuple[int, U8, U8]:
    """(n, rows of the open segment, recent) of the most tokens, up to `n_tokens`, of which layers
    with a window have what comes before: those before a pin, or before a checkpoint."""
    named = {c.segment: c for c in state.commit.checkpoints}
    n_before = n_segments(max(folder.manifest.windows))
    places = {SEGMENT * newest_end(named, n_before, n_tokens // SEGMENT): Pin(0, Tail())}
    for pin in state.commit.pins:
        in_segment = pin.n_tokens // SEGMENT == n_tokens // SEGMENT
        if pin.n_tokens <= n_tokens or in_segment:
            places[min(pin.n_tokens, n_tokens)] = pin
    for n in sorted(places, reverse=True):
        with suppress(PackDamaged):  # a pin's file may be gone: an archive has none
            rows, _ = folder.read_tail(places[n].tail, places[n].n_tokens)
            return n, rows, folder.read_recent(named, n // SEGMENT)
    return 0, state.rows[:0], state.recent[:0]


def shared_segments(folder: PackFolder, state: State) -> Parent | None:
    """The full segments of a state of the folder that a child shares; None if there are none.

    They are those of the pack that has the last of them, or of one that it begins with.
    """
    n, log = state.n_full, (state.commit.log_bytes, state.commit.log_chain)
    places, depth = state.tables.places[KV], depth_of(folder)
    most = depth if depth < MOST_DEPTH else MOST_DEPTH // 2
    while folder.parent is not None:
        before = next((i for i in range(n) if places[i].folder is folder), n)
        if before < n and depth <= most:
            break
        inherited = folder.manifest.parent
        assert inherited is not None
        n, log = min(before, inherited.n_segments), (inherited.log_bytes, inherited.log_chain)
        folder, depth = folder.parent, depth - 1
    return Parent(str(folder.path.resolve()), folder.manifest.id, n, *log) if n else None


def segment_bytes(folder: PackFolder, state: State, plane: str, segment: int) -> bytes:
    """All bytes of a full segment of K and V or of a column, file after file; `PackDamaged` if they
    are not as written."""
    place = state.tables.places[plane][segment]
    n_bytes = folder.part_bytes(plane, state.tables.item_bytes.get(plane, 0))
    return b"".join(
        read_slot(place, plane, file, n_bytes) for file in range(len(folder.names(plane)))
    )
