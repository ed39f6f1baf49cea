"""Where a user's packs and chat sessions are kept, and which model was pulled and made last.

$KVARN_HOME, else $XDG_DATA_HOME/kvarn, else ~/.local/share/kvarn
  ├─ packs/NAME       context packs
  ├─ sessions/NAME    chats, each a pack of its own
  └─ last.json        {"pull": {"name", "path"}, "model": {"path"}, "models": {path: origin}}

New files in it are the user's alone: 0600, in folders 0700. Existing ones keep their modes.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..system.errors import KvarnError
from ..system.files import PRIVATE, SHARED, open_regular, write_file

_LAST = "last.json"


def home() -> Path:
    """The folder, which may not exist yet; `KvarnError` for a user without a home folder."""
    if chosen := os.environ.get("KVARN_HOME"):
        return Path(chosen).expanduser().absolute()
    xdg = Path(os.environ.get("XDG_DATA_HOME", ""))
    if xdg.is_absolute():
        return xdg / "kvarn"
    try:
        return Path.home() / ".local" / "share" / "kvarn"
    except RuntimeError as error:
        raise KvarnError("this user has no home folder: set KVARN_HOME") from error


def make_folder(path: Path) -> list[Path]:
    """Make a folder and the missing ones above it; returns the new ones, the highest first.

    Inside the user's folder each is 0700; elsewhere the umask decides.
    """
    made: list[Path] = []
    try:
        for folder in [p for p in (path, *path.parents) if not p.is_dir()][::-1]:
            folder.mkdir(folder_mode(path), exist_ok=True)
            made.append(folder)
    except OSError:
        remove_empty(made)
        raise
    return made


def remove_empty(made: list[Path]) -> None:
    """Remove the folders that `make_folder` made, except those that are in use by now."""
    for folder in reversed(made):
        with suppress(OSError):
            folder.rmdir()


def folder_mode(path: Path) -> int:
    """The mode of a new folder, less the umask: for its owner alone inside the user's folder."""
    return 0o700 if _is_at_home(path) else 0o777


def mode_in(folder: Path) -> int:
    """The mode of new files in a folder of packs or contexts, less the umask: for everybody that
    the folder is open to."""
    return stat.S_IMODE(folder.stat().st_mode) & SHARED


def _is_at_home(path: Path) -> bool:
    """Whether a path is the user's folder or inside it."""
    try:
        base = home()
    except KvarnError:  # no home folder
        return False
    real = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(base))
    return real or path.absolute().is_relative_to(base)


def pack_path(name: str) -> Path:
    """The folder of a pack: a path if `name` has a `/`, else a name among the user's packs."""
    return _named(name, "packs")


def session_path(name: str) -> Path:
    """The folder of a chat session, named as packs are."""
    return _named(name, "sessions")


def saved_path(name: str) -> Path:
    """The folder of the pack of that name or, where there is none, of the session."""
    pack, session = pack_path(name), session_path(name)
    return session if session.is_dir() and not pack.exists() else pack


def last_pull() -> tuple[str, Path] | None:
    """Name and path (a folder or a GGUF file) of what was pulled last; None if nothing was."""
    entry = _last().get("pull", {})
    path = _path(entry)
    return None if path is None else (str(entry.get("name", path.name)), path)


def last_model() -> Path | None:
    """The GGUF file of a model that generates text which was converted or pulled last; it may be
    gone."""
    return _path(_last().get("model", {}))


def models_made() -> dict[Path, str]:
    """GGUF files that were converted or pulled → which of the two; some may be gone."""
    models = {Path(path): str(origin) for path, origin in _last().get("models", {}).items()}
    last = last_model()
    return models if last is None else {last: "converted or pulled", **models}


def remember_pull(name: str, path: Path) -> None:
    """Remember the model that was pulled last, for `last_pull`."""
    _remember(pull={"name": name, "path": str(path.absolute())})


def remember_model(path: Path, origin: str, *, generates: bool = True) -> None:
    """Remember a model for `models_made`, and for `last_model` if it generates text; forget those
    whose files are gone."""
    name, last = str(path.absolute()), _last().get("model", {})
    if generates:
        last = {"path": name}
    elif last.get("path") == name:  # another file, which generates nothing, took its place
        last = {}
    origins = {**_last().get("models", {}), name: origin}
    models = {file: str(how) for file, how in origins.items() if Path(file).is_file()}
    _remember(model=last, models=models)


def _last() -> dict[str, Any]:
    """What is remembered; nothing if the file is missing or was not written by kvarn."""
    try:
        with os.fdopen(open_regular(home() / _LAST), encoding="utf-8") as file:
            stored = json.load(file)
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    entries = stored.items() if isinstance(stored, dict) else ()
    return {key: entry for key, entry in entries if isinstance(entry, dict)}


def _path(entry: dict[str, Any]) -> Path | None:
    path = entry.get("path")
    return Path(path) if isinstance(path, str) else None


def _remember(**entries: dict[str, str]) -> None:
    folder = home()
    make_folder(folder)
    text = json.dumps({**_last(), **entries}, indent=2) + "\n"
    write_file(folder / _LAST, text.encode(), PRIVATE)


def _named(name: str, kind: str) -> Path:
    if os.sep in name:
        return Path(name).expanduser()
    if not name or name.startswith(".") or not name.isprintable():
        raise KvarnError(f"{name!r} is not a name: give a plain word, or a path with a {os.sep}")
    return home() / kind / name
