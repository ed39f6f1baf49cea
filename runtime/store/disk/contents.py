"""Which files in a pack's folder are kvarn's, how an empty pack is made, how packs are removed.

Making a pack leaves a whole one, or nothing. Removing it removes the files that kvarn names, the
commits first and the manifest last, then the folder if it is empty: files that kvarn has not made
stay. A process that is killed meanwhile leaves a pack without commits (`is_half_removed`).
"""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from ....ops.arrays import F32, U8
from ....ops.attention.layout import SEGMENT
from ....system.files import remove_folder
from ....system.text import one_line
from ...home import make_folder, remove_empty
from . import files
from .errors import PackBusy, PackError, opening
from .format import centre, checkpoints, log, manifest, snapshot, states, superblock, tail
from .format.checkpoints import Checkpoint
from .format.manifest import Manifest
from .format.superblock import Commit

LOCK = "lock"
CONVERSATION = "conversation.json"
"""The messages of a session, see `chat.session`."""

# Written under another name and then renamed (system.files). A killed process leaves that name.
_REPLACED = (manifest.NAME, centre.NAME, snapshot.NAME, CONVERSATION)
_ASIDE = re.compile(rf"\.({'|'.join(map(re.escape, _REPLACED))})\.[0-9a-f]{{16}}\.part")
_FIXED = {*_REPLACED, LOCK, superblock.NAME, checkpoints.NAME, states.NAME, log.NAME}
_NUMBERED = re.compile(
    rf"{tail.NAMES.pattern}|layer-[0-9]{{3}}\.kv|index-(?:{log.COLUMN_NAME.pattern})"
)


def is_pack_file(name: str) -> bool:
    """Whether a file of this name in a pack's folder is one that kvarn writes."""
    return name in _FIXED or bool(_NUMBERED.fullmatch(name) or _ASIDE.fullmatch(name))


def remove_files(path: Path) -> list[str]:
    """Remove a pack's files, and its folder if nothing else is in it.

    Returns the sorted names of other files, which stay. Raises OSError.
    """
    rank = {superblock.NAME: 0, LOCK: 2, manifest.NAME: 3}
    return remove_folder(path, is_pack_file, lambda name: rank.get(name, 1))


def is_half_removed(path: Path, facts: Manifest) -> bool:
    """Whether a process was killed while it removed the pack with that manifest."""
    return facts.slots is None and not os.path.lexists(path / superblock.NAME)


def take_lock(path: Path) -> int:
    """The writer's lock, held until the descriptor is closed; `PackBusy` if another has it."""
    fd = files.open_file(path / LOCK, writable=True)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise PackBusy(path) from error
    return fd


def is_busy(path: Path) -> bool:
    """Whether another process or context is writing to the pack, if it is one; `PackError` if it
    cannot be opened for writing."""
    with opening(path):
        if not (path / manifest.NAME).exists():
            return False
        try:
            os.close(take_lock(path))
        except PackBusy:
            return True
    return False


def create(path: Path, facts: Manifest, means: F32 | None = None, recent: U8 | None = None) -> None:
    """Make an empty pack; `PackError` if the folder holds anything else, `PackBusy` if another
    process has made it meanwhile. If that fails, nothing of it is left.

    means: mean keys, float32 (layers, J, E), if keys are stored without them. recent: those of the
    parent's state, if it has one.
    """
    _check_free(path)
    folders = make_folder(path)
    try:
        lock = take_lock(path)
        try:
            _fill(path, facts, means, recent)
        finally:
            os.close(lock)
    except Exception:  # an interrupt may leave a part, from which the next process goes on
        remove_empty(folders)
        raise


def _is_left_by_creation(name: str) -> bool:
    """Whether the creation of a pack, if it was stopped, can have left a file of this name."""
    names = {LOCK, superblock.NAME, centre.NAME, checkpoints.NAME}
    return name in names or bool(_ASIDE.fullmatch(name))


def _check_free(path: Path) -> None:
    """`PackError` if the folder holds what no creation of a pack can have left."""
    children = path.iterdir() if path.is_dir() else ()
    strangers = [file.name for file in children if not _is_left_by_creation(file.name)]
    if manifest.NAME in strangers:
        raise PackBusy(path)
    if strangers:
        stranger = one_line(min(strangers))
        raise PackError(path, f"cannot make a pack in this folder: it holds {stranger}")


def _fill(path: Path, facts: Manifest, means: F32 | None, recent: U8 | None) -> None:
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


def _begin(path: Path, facts: Manifest, recent: U8 | None) -> None:
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
