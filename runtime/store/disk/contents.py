"""Which files in a pack's folder are kvarn's own, how they are removed, and the writer's lock.

Removing a pack removes the files that kvarn names, then the folder if it is empty. Files that kvarn
has not made stay.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from ....system.files import remove_folder
from . import files
from .errors import PackError
from .format import centre, checkpoints, log, manifest, snapshot, superblock, tail

LOCK = "lock"
CONVERSATION = "conversation.json"
"""The messages of a session, see `chat.session`."""

# Written under another name and then renamed. A killed process leaves that name: it ends in `.part`
# (system.files), or in `.new` in packs of older versions of kvarn.
_REPLACED = (manifest.NAME, centre.NAME, snapshot.NAME, CONVERSATION)
_ASIDE = re.compile(
    "|".join(
        rf"{re.escape(name)}\.new|\.{re.escape(name)}\.[0-9a-f]{{16}}\.part" for name in _REPLACED
    )
)
_FIXED = {*_REPLACED, LOCK, superblock.NAME, checkpoints.NAME, log.NAME}
_NUMBERED = re.compile(
    rf"{tail.NAMES.pattern}|layer-[0-9]{{3}}\.kv|index-(?:{log.COLUMN_NAME.pattern})"
)


def is_ours(name: str) -> bool:
    """Whether a file of this name in a pack's folder is one that kvarn writes."""
    return name in _FIXED or bool(_NUMBERED.fullmatch(name) or _ASIDE.fullmatch(name))


def is_left_by_creation(name: str) -> bool:
    """Whether the creation of a pack, if it was stopped, can have left a file of this name."""
    made = {LOCK, superblock.NAME, centre.NAME, checkpoints.NAME}
    return name in made or bool(_ASIDE.fullmatch(name))


def remove_files(path: Path) -> list[str]:
    """Remove a pack's files, its manifest last, and its folder if nothing else is in it.

    Returns the sorted names of other files, which stay. Raises OSError.
    """
    last = {manifest.NAME, LOCK}
    remove_folder(path, lambda name: is_ours(name) and name not in last)
    return remove_folder(path, is_ours)


def take_lock(path: Path) -> int:
    """The writer's lock, held until the descriptor is closed; `PackError` if another has it."""
    fd = files.open_file(path / LOCK, writable=True)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise PackError(
            path, "another process or context is writing to it; wait for it to end"
        ) from error
    return fd
