"""Where a chat keeps its context: in memory, after a pack, or in a session that is saved."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...runtime.home import session_path
from ...system.errors import KvarnError
from ..options.context import context_from
from ..options.store import disk_from, with_its_model
from ..terminal.notices import notice

if TYPE_CHECKING:
    from ...runtime.chat import Conversation, Session
    from ...runtime.context import Context
    from ...runtime.model import Model
    from ...runtime.packs import PackInfo


def saved_session(options: argparse.Namespace) -> PackInfo | None:
    """What `--session` has saved, if anything; without `-m`, its model will be loaded."""
    if options.session is None:
        return None
    path = session_path(options.session)
    if not (path / "pack.json").exists():
        return None
    if options.pack is not None:
        raise KvarnError(f"session {options.session} has begun already: omit --pack")
    return with_its_model(options, path)


def chat_context(
    options: argparse.Namespace, model: Model, pack: PackInfo | None, held: PackInfo | None
) -> Context:
    """A context in memory, perhaps after a pack; on disk for a session, which may follow a pack.

    held: what the context begins with, the session's own state or the pack.
    """
    if options.session is not None:
        parent = None if pack is None else pack.path
        disk = disk_from(options, session_path(options.session), parent=parent)
        return context_from(options, model, disk, 0 if held is None else held.n_tokens)
    if pack is not None:
        disk = disk_from(options, pack.path, read_only=True)
        return context_from(options, model, disk, pack.n_tokens)
    return context_from(options, model)


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
