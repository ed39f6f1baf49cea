"""Where a user's packs and chat sessions are kept, and which model was pulled and made last.

$KVARN_HOME, else $XDG_DATA_HOME/kvarn, else ~/.local/share/kvarn
  ├─ packs/NAME       context packs
  ├─ sessions/NAME    chats, each a pack of its own
  └─ last.json        {"pull": {"name", "path"}, "model": {"path"}}
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..system.errors import KvarnError

_LAST = "last.json"


def home() -> Path:
    """The folder, whether it exists or not; `KvarnError` for a user without a home folder."""
    if chosen := os.environ.get("KVARN_HOME"):
        return Path(chosen).expanduser().absolute()
    xdg = Path(os.environ.get("XDG_DATA_HOME", ""))
    if xdg.is_absolute():
        return xdg / "kvarn"
    try:
        return Path.home() / ".local" / "share" / "kvarn"
    except RuntimeError as error:
        raise KvarnError("this user has no home folder: set KVARN_HOME") from error


def pack_path(name: str) -> Path:
    """The folder of a pack: a path where `name` has a `/`, else a name among the user's packs."""
    return _named(name, "packs")


def session_path(name: str) -> Path:
    """The folder of a chat session, named as packs are."""
    return _named(name, "sessions")


def last_pull() -> tuple[str, Path] | None:
    """Name and place (a folder, or a GGUF file) of what was pulled last; None where nothing was."""
    entry = _last().get("pull", {})
    path = _path(entry)
    return None if path is None else (str(entry.get("name", path.name)), path)


def last_model() -> Path | None:
    """The GGUF file that was converted or pulled last, whether it is still there or not."""
    return _path(_last().get("model", {}))


def remember_pull(name: str, path: Path) -> None:
    """For `last_pull`."""
    _remember("pull", {"name": name, "path": str(path.absolute())})


def remember_model(path: Path) -> None:
    """For `last_model`."""
    _remember("model", {"path": str(path.absolute())})


def _last() -> dict[str, Any]:
    """What is remembered; nothing where the file is missing or not one that kvarn wrote."""
    try:
        found = json.loads((home() / _LAST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return (
        {key: v for key, v in found.items() if isinstance(v, dict)}
        if isinstance(found, dict)
        else {}
    )


def _path(entry: dict[str, Any]) -> Path | None:
    path = entry.get("path")
    return Path(path) if isinstance(path, str) else None


def _remember(key: str, entry: dict[str, str]) -> None:
    folder = home()
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{_LAST}.{os.getpid()}"
    new.write_text(json.dumps({**_last(), key: entry}, indent=2) + "\n", encoding="utf-8")
    new.replace(folder / _LAST)


def _named(name: str, kind: str) -> Path:
    if os.sep in name:
        return Path(name).expanduser()
    if not name or name.startswith(".") or not name.isprintable():
        raise KvarnError(f"{name!r} is no name: give a plain word, or a path with a {os.sep}")
    return home() / kind / name
