"""Where a chat keeps its context: in memory, after a pack, or in a session that is saved."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.context.request import ContextRequest
from ...runtime.home import pack_path, session_path
from ...system.errors import KvarnError
from ..options.context import request_from
from ..options.methods import flag
from ..terminal.notices import notice

if TYPE_CHECKING:
    from ...runtime.chat import Conversation, Session


def chat_request(options: argparse.Namespace) -> ContextRequest:
    """What the options ask of the context; a session is a folder that may begin with a pack."""
    if options.session is None:
        return request_from(options)
    path = session_path(options.session)
    begins = None if options.pack is None else pack_path(options.pack)
    if (path / "pack.json").exists():
        _find_parent(options.session, path, begins)
        begins = None
    words = {**vars(options), "pack": None, "store": str(path), "parent": begins}
    return ContextRequest.of(words, lambda word: "--session" if word == "store" else flag(word))


def _find_parent(session: str, path: Path, pack: Path | None) -> None:
    """A session that has begun takes `--pack` only as the new place of the pack it began with."""
    from ...runtime.pack_links import missing_parent, name_parent

    gone = missing_parent(path)
    if pack is None and gone:
        raise KvarnError(
            f"session {session} begins with the pack {gone}, which is gone: if it was "
            "moved, name its new place once with --pack NAME"
        )
    if pack is not None and not gone:
        raise KvarnError(f"session {session} has begun already: omit --pack")
    if pack is not None:
        name_parent(path, pack)


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
