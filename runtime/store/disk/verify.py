"""Check every byte that a pack's commits name against its digest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .errors import PackError
from .folder import PackFolder, State
from .format import snapshot, superblock
from .plane import read_slot

Progress = Callable[[int, int], None]
"""Called with (segments done, segments in all)."""


def verify(path: Path, progress: Progress | None = None) -> list[str]:
    """One line for each damage; no line: the pack is as it was written.

    Reads all of it, its parents' segments too. Raises `PackError` if the folder is not a pack or
    has another format; damage that prevents opening it is a line like any other.
    """
    folder = PackFolder(path)
    found: list[str] = []
    try:
        folder.centre()
        if folder.manifest.slots is not None:
            snapshot.verify(path)
            return []
        found = _superblocks(folder)
        return found + _segments(folder, folder.state(), progress)
    except PackError as error:
        return [*found, str(error)]


def _superblocks(folder: PackFolder) -> list[str]:
    n_embd = folder.manifest.model.n_embd
    found = [superblock.decode(data, n_embd) for data in folder.superblocks()]
    if found[1] is None and found[0] is not None and found[0][0].sequence == 0:
        return []  # nothing was committed since the pack was made
    return [
        f"pack {folder.path}: {superblock.NAME} is damaged in slot {number}"
        for number, commit in enumerate(found)
        if commit is None
    ]


def _segments(folder: PackFolder, state: State, progress: Progress | None) -> list[str]:
    places = [(place, plane) for plane, found in state.tables.places.items() for place in found]
    lines = []
    for done, (place, plane) in enumerate(places, 1):
        n_bytes = folder.part_bytes(plane, state.tables.item_bytes.get(plane, 0))
        for file in range(len(place.digests)):
            try:
                read_slot(place, plane, file, n_bytes)
            except PackError as error:
                lines.append(str(error))
        if progress is not None:
            progress(done, len(places))
    return lines
