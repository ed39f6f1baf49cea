"""The files outside its folder that a pack names: its model, and the pack it begins with.

Both may be moved. The digests in `pack.json` tell whether a file at another place is the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...system.errors import KvarnError
from ..gguf import open_gguf
from ..home import models_made
from ..loading.default_model import default_model_path
from ..loading.fingerprint import fingerprint
from ..store import PackError
from ..store.disk.contents import take_lock
from ..store.disk.format.manifest import NAME, Manifest
from ..store.disk.models import facts_of

if TYPE_CHECKING:
    from ..model import Model
    from ..store.facts import PackHead


def model_of(pack: PackHead) -> Path | None:
    """The file of a pack's model: the one that the pack names, or one of the same fingerprint among
    those that were pulled, converted or ship with kvarn. None if it is nowhere."""
    named = Path(pack.model_path)
    if named.is_file():
        return named
    for path in (*models_made(), default_model_path()):
        with suppress(KvarnError, OSError), open_gguf(path) as file:
            if fingerprint(file) == pack.fingerprint:
                return path
    return None


def name_model(path: Path, model: Model) -> None:
    """Record the file of `model` in the pack in `path`, if it is the pack's model and the recorded
    file is gone.

    Packs that this user cannot write, or that a process is writing to, stay as they are.
    """
    before, facts = Manifest.read(path).model, facts_of(model.info)
    same = before.same_model(facts) and before.tokenizer in ("", facts.tokenizer)
    if not same or Path(before.path).is_file():
        return
    with suppress(PackError, OSError):
        _change(path, lambda pack: replace(pack, model=replace(before, path=facts.path)))


def missing_parent(path: Path) -> str:
    """The folder of the pack that the one in `path` begins with, if it is gone, else ""."""
    parent = Manifest.read(path).parent
    gone = parent is not None and not (parent.folder(path) / NAME).exists()
    return parent.path if parent is not None and gone else ""


def name_parent(path: Path, new: Path) -> None:
    """Record the folder `new` for the parent of the pack in `path`, which is not where it was.

    Raises `PackError` if another pack is there; OSError.
    """
    parent, new_id = Manifest.read(path).parent, Manifest.read(new).id
    assert parent is not None
    if new_id != parent.id:
        raise PackError(new, f"it is pack {new_id}, expected {parent.id}, which was moved")
    moved = replace(parent, path=str(new.resolve()))
    _change(path, lambda pack: replace(pack, parent=moved))


def _change(path: Path, changed: Callable[[Manifest], Manifest]) -> None:
    """Write a pack's manifest anew, while no other process writes to the pack."""
    lock = take_lock(path)
    try:
        changed(Manifest.read(path)).write(path)
    finally:
        os.close(lock)
