"""Where a user's packs and chat sessions are kept.

$KVARN_HOME, else $XDG_DATA_HOME/kvarn, else ~/.local/share/kvarn
  ├─ packs/NAME       context packs
  └─ sessions/NAME    chats, each a pack of its own
"""

from __future__ import annotations

import os
from pathlib import Path

from ..ops.errors import KvarnError


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


def _named(name: str, kind: str) -> Path:
    if os.sep in name:
        return Path(name).expanduser()
    if not name or name.startswith(".") or not name.isprintable():
        raise KvarnError(f"{name!r} is no name: give a plain word, or a path with a {os.sep}")
    return home() / kind / name
