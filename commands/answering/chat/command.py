"""`kvarn chat`: a conversation at a terminal, or one turn per line of a pipe."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ....runtime.context.planning.request import ContextRequest
from ....runtime.home import pack_path, session_path
from ....runtime.keep import KeepAll
from ....system.errors import KvarnError, WrongUsage
from ....system.spelling import as_flag
from ....system.terminal import say
from ...notices import tell_of_template
from ...opening import Workload, load_draft, load_model, open_context
from ...options.context import add_context_options, add_pack_options, request_from
from ...options.draft_options import add_draft_options
from ...options.drafting import draft_from
from ...options.files import add_prompt_files_option, prompt_from
from ...options.generation import (
    add_max_tokens_option,
    add_sampling_options,
    add_system_option,
    sampling_from,
)
from ...options.model import ModelRequest
from ...options.model_options import add_model_options
from ...options.values import file_name
from ...terminal.progress import ReadingBar, index_context
from .input import TurnReader

if TYPE_CHECKING:
    from ....runtime.chat.conversation import Conversation
    from ....runtime.chat.session import Session
    from ....runtime.context import Context


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talk with a model: answers go to stdout, everything else to stderr. At a terminal, lines "
        "pasted together are one turn; on a pipe, each line is. /help lists the commands."
    )
    parser.epilog = (
        "Ctrl-C stops an answer, not the program. At the prompt, pressing it twice in a "
        "row exits with code 130; /quit and the end of input with 0, or 1 if a piped line failed."
    )
    add_system_option(parser, "the system message")
    add_max_tokens_option(
        parser,
        None,
        "at most N tokens in an answer (default -1: until the model or the context ends)",
    )
    parser.add_argument(
        "--stats", action="store_true", help="print speed and memory to stderr at the end"
    )
    parser.add_argument(
        "--session",
        metavar="NAME",
        type=file_name,
        help="continue the conversation of this name, and save it after every turn; with --pack, "
        "a new one starts after that pack",
    )
    add_prompt_files_option(
        parser,
        "read FILE first (a text, PDF, Word, EPUB or HTML file, or a folder of them; may be "
        "repeated) and talk about it; `kvarn pack build` keeps what is read",
    )
    add_model_options(parser, with_device=True)
    add_context_options(parser)
    add_pack_options(parser)
    add_sampling_options(parser)
    add_draft_options(parser)


def run(options: argparse.Namespace) -> int:
    from .loop import Chat

    source, request = ModelRequest.of(options), _request(options)
    text = _text(options, request)
    sampling, drafting = sampling_from(options), draft_from(options)
    work = Workload.of(request)
    model = load_model(source, work, request.store.head(), compiles=False, draft=drafting)
    draft = load_draft(drafting)
    if model.chat_template is not None:
        model.chat_template.start()
    from ....runtime.chat.conversation import Conversation

    with _without_empty(options.session), open_context(source, model, request) as context:
        if draft is not None:
            draft.prepare(context)
        ids = context.encode(text) if text else []
        if ids:
            context.reader.check(ids)
        tell_of_template(model)
        if ids:
            _read(context, ids)
        conversation = Conversation(
            context,
            sampler=model.sampler(**sampling),
            stop=options.stop,
            max_tokens=options.max_tokens,
            system=options.system,
            draft=draft,
            base=len(context.tokens),
        )
        conversation.template.check()  # its process started while the context was made
        index_context(context)
        chat = Chat(conversation, TurnReader(), _session(options, conversation))
        if chat.reader.interactive:
            say(f"talking with {model.name}; /help lists the commands, Ctrl-D leaves")
        code = chat.run()
        if options.stats:
            chat.stats("")
    return code


def _text(options: argparse.Namespace, request: ContextRequest) -> str:
    """What to talk about; "" without `-f`. Raises `KvarnError` where the chat begins otherwise."""
    if options.files is None:
        return ""
    for option, begins in (("--pack", options.pack), ("--session", options.session)):
        if begins is not None:
            raise WrongUsage(
                f"-f and {option} both say how the chat begins: give one of them, or make a pack "
                "of the files with `kvarn pack build`"
            )
    if not isinstance(request.keep, KeepAll):
        raise WrongUsage(f"-f needs every token of its text: omit --keep {request.keep.name}")
    return prompt_from(options)


def _read(context: Context, ids: list[int]) -> None:
    """Read what the chat is about."""
    with closing(ReadingBar("reading", 0, context.stats)) as progress:
        context.prefill(ids, progress)


def _request(options: argparse.Namespace) -> ContextRequest:
    """What the options ask of the context; a session is a folder that may begin with a pack."""
    if options.session is None:
        return request_from(options)
    path = session_path(options.session)
    parent = None if options.pack is None else pack_path(options.pack)
    if (path / "pack.json").exists():
        _check_parent(options.session, path, parent)
        parent = None
    words = {**vars(options), "pack": None, "store": str(path), "parent": parent}
    return ContextRequest.of(words, lambda word: "--session" if word == "store" else as_flag(word))


def _check_parent(session: str, path: Path, pack: Path | None) -> None:
    """A session that has begun takes `--pack` only as the new place of the pack it began with,
    which it then finds there."""
    from ....runtime.packs.links import missing_parent, name_parent

    missing = missing_parent(path)
    if pack is not None and missing:
        name_parent(path, pack)
    elif pack is not None:
        raise KvarnError(f"session {session} has begun already: omit --pack")
    elif missing:
        raise KvarnError(
            f"session {session} begins with the pack {missing}, which is gone: if it was "
            "moved, name its new place once with --pack NAME"
        )


@contextmanager
def _without_empty(name: str | None) -> Iterator[None]:
    """Remove the session of that name at the end if it was made meanwhile and has no messages."""
    path = None if name is None else session_path(name)
    is_new = path is not None and not path.exists()
    try:
        yield
    finally:
        if is_new and path is not None and (path / "pack.json").exists():
            from ....runtime.chat.session import Session
            from ....runtime.packs.pack import remove_pack

            if not Session(path).messages():
                remove_pack(path)


def _session(options: argparse.Namespace, conversation: Conversation) -> Session | None:
    """The session that the conversation is saved in, with its messages loaded."""
    if options.session is None:
        return None
    from ....runtime.chat.session import Session

    session = Session(session_path(options.session))
    if session.load(conversation):
        if options.system is not None:
            conversation.system = options.system
        say(f"session {options.session}: {len(conversation.messages)} messages so far")
    else:
        session.save(conversation)
    return session
