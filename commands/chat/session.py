"""Where a chat keeps its context: in memory, after a pack, or in a session that is saved."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.home import pack_path, session_path
from ...system.errors import KvarnError
from ..options.store import disk_from, saved_in
from ..terminal.notices import notice

if TYPE_CHECKING:
    from ...runtime.chat import Conversation, Session
    from ...runtime.packs import PackInfo
    from ...runtime.store import Disk


def saved_session(options: argparse.Namespace) -> PackInfo | None:
    """What `--session` has saved, if anything; without `-m`, its model will be loaded."""
    if options.session is None:
        return None
    path = session_path(options.session)
    if (path / "pack.json").exists():
        _find_parent(options, path)
    return saved_in(options, path)


def _find_parent(options: argparse.Namespace, path: Path) -> None:
    """A session that has begun takes `--pack` only as the new place of the pack it began with."""
    from ...runtime.pack_links import missing_parent, name_parent

    gone = missing_parent(path)
    if options.pack is None and gone:
        raise KvarnError(
            f"session {options.session} begins with the pack {gone}, which is gone: if it was "
            "moved, name its new place once with --pack NAME"
        )
    if options.pack is not None and not gone:
        raise KvarnError(f"session {options.session} has begun already: omit --pack")
    if options.pack is not None:
        name_parent(path, pack_path(options.pack))
        options.pack = None


def chat_disk(options: argparse.Namespace, pack: PackInfo | None) -> Disk | None:
    """Where the KV cache is: in a session, which may follow a pack, after a pack, or in memory."""
    if options.session is not None:
        parent = None if pack is None else pack.path
        return disk_from(options, session_path(options.session), parent=parent)
    return None if pack is None else disk_from(options, pack.path, read_only=True)


def session_of(options: argparse.Namespace, conversation: Conversation) -> Session | None:
    """The session that the conversation is saved in, with its messages loaded."""
    if options.session is None:
        return None
    from ...runtime.chat import Session

    session = Session(session_path(options.session))
    if session.load(conversation):
        if options.system is not None:
            conversation.system = options.system
        notice(f"session {options.session}: {len(conversation.messages)} messages so far")
    else:
        session.save(conversation)
    return session
