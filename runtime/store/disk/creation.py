"""Making an empty pack: whole, or not at all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ....ops.attention.layout import SEGMENT
from ....system.text import one_line
from ...home import make_folder, remove_empty
from . import files
from .contents import LOCK, is_left_by_creation, take_lock
from .errors import PackError
from .format import centre, checkpoints, manifest, superblock
from .format.checkpoints import Checkpoint
from .format.manifest import Manifest
from .format.superblock import Commit


def create(
    path: Path,
    facts: Manifest,
    means: NDArray[np.float32] | None = None,
    recent: NDArray[np.uint8] | None = None,
) -> None:
    """Make an empty pack; `PackError` if the folder holds anything else. If that fails, nothing of
    it is left.

    means: mean keys, float32 (layers, J, E), if keys are stored without them. recent: those of the
    parent's state, if it has one.
    """
    _check_free(path)
    made = make_folder(path)
    try:
        lock = take_lock(path)
        try:
            _fill(path, facts, means, recent)
        finally:
            os.close(lock)
    except (
        Exception
    ):  # not on interrupts: they may leave a part, from which the next process goes on
        remove_empty(made)
        raise


def _check_free(path: Path) -> None:
    """`PackError` if the folder holds what no creation of a pack can have left."""
    found = path.iterdir() if path.is_dir() else ()
    strangers = [p.name for p in found if not is_left_by_creation(p.name)]
    if strangers:
        what = one_line(min(strangers))
        raise PackError(path, f"cannot make a pack in this folder: it holds {what}")


def _fill(
    path: Path,
    facts: Manifest,
    means: NDArray[np.float32] | None,
    recent: NDArray[np.uint8] | None,
) -> None:
    """Write an empty pack's files; the lock is held."""
    _check_free(path)  # now that nobody else can be making one
    try:
        if facts.slots is None:
            _begin(path, facts, recent)
        if means is not None:
            data, digest = centre.encode(means)
            files.replace(path / centre.NAME, data)
            facts = replace(facts, centre=digest)
        files.sync_folder(path)
        facts.write(path)  # last, since it makes the folder a pack
        files.sync_folder(path.parent)
    except Exception:
        for name in (manifest.NAME, centre.NAME, superblock.NAME, checkpoints.NAME, LOCK):
            files.remove(path / name)
        raise


def _begin(path: Path, facts: Manifest, recent: NDArray[np.uint8] | None) -> None:
    """The first superblock, of a commit without tokens of its own."""
    n_full = 0 if facts.parent is None else facts.parent.n_segments
    named: list[Checkpoint] = []
    if n_full and recent is not None and recent.size:
        parts = np.split(recent, len(recent) // min(SEGMENT, max(facts.windows)))
        for slot, part in enumerate(parts):
            digest = files.digest(part.tobytes()).hex()
            named.append(Checkpoint(n_full - len(parts) + slot, slot, digest))
        files.write_file(path / checkpoints.NAME, recent.tobytes())
    empty = Commit(0, n_full * SEGMENT, 0, "", superblock.Tail(), checkpoints=tuple(named))
    files.write_file(path / superblock.NAME, superblock.encode(empty, None))
