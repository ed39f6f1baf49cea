"""`kvarn chat`: a conversation in the terminal, or one turn per line of a pipe."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...system.errors import KvarnError
from ...system.terminal import generate, say_lines
from .. import REAL_MODEL
from ..opening import Needs, load_only, opened
from ..options.context import add_context_options, add_pack_options
from ..options.draft import add_draft_options, draft_from
from ..options.generation import add_max_tokens_option, add_system_option
from ..options.model import ModelRequest, add_device_option, add_model_options
from ..options.sampling import add_sampling_options, sampler_from
from ..options.values import file_name
from ..terminal.interrupt import Interruptible, StoppedReading
from ..terminal.notices import notice, tell_of_base_model
from ..terminal.reading import index_held
from .session import chat_request, session_of

if TYPE_CHECKING:
    from ...runtime.chat import Conversation, Session
    from ...runtime.context import Progress
    from ...runtime.model import Model
    from .input import TurnReader

HELP = '''\
/help           this list
/system TEXT    set the system message (all is read again); without TEXT: show it; -: remove it
/reset          forget the conversation, keep the system message
/regen          answer the last message again
/undo           remove the last message and its answer
/stats          speed, memory, and how full the context is
/save FILE      write the conversation as JSON
/load FILE      continue a saved conversation
/quit           leave (also /exit, /bye and Ctrl-D)
"""             begins and ends a message of several lines
a paste         of several lines is one message, sent by Enter; commands in it are text
//TEXT          sends /TEXT
Ctrl-C          stops the answer; at the prompt, twice in a row leaves'''

INTERRUPTED = 130


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talk with a model: answers go to stdout, everything else to stderr. At a terminal, lines "
        "pasted together are one turn; on a pipe, each line is. /help lists the commands."
    )
    parser.epilog = (
        "Ctrl-C stops an answer, not the program. At the prompt, pressing it twice in a "
        "row exits with code 130; /quit and the end of input exit with 0."
    )
    add_system_option(parser, "the system message")
    add_max_tokens_option(
        parser,
        -1,
        "at most N tokens an answer (default -1: until the model or the context ends)",
    )
    parser.add_argument(
        "--stats", action="store_true", help="print speed and memory to stderr at the end"
    )
    parser.add_argument(
        "--session",
        metavar="NAME",
        type=file_name,
        help="save the conversation under this name after every turn, or continue it; with --pack, "
        "it starts after that pack",
    )
    add_model_options(parser)
    add_device_option(parser)
    add_context_options(parser)
    add_pack_options(parser)
    add_sampling_options(parser)
    add_draft_options(parser)


def run(options: argparse.Namespace) -> int:
    from .input import TurnReader

    source, request = ModelRequest.of(options), chat_request(options)
    sampler, draft = sampler_from(options), draft_from(options)
    model = load_only(source, Needs(request.store.types()), request.store.head())
    _start_template(model)
    from ...runtime.chat import Conversation

    with opened(source, model, request) as context:
        conversation = Conversation(
            context,
            sampler=sampler,
            stop=options.stop,
            max_tokens=None if options.max_tokens < 0 else options.max_tokens,
            system=options.system,
            draft=draft,
            base=len(context.tokens),
        )
        conversation.template.check()  # its process started while the context was made
        index_held(context)
        session = session_of(options, conversation)
        chat = Chat(conversation, TurnReader(), session)
        if chat.reader.interactive:
            notice(f"talking with {model.name}; /help lists the commands, Ctrl-D leaves")
        code = chat.run()
        if options.stats:
            chat.stats("")
    return code


def _start_template(model: Model) -> None:
    """Start the process of the model's chat template; a notice if it has none."""
    if model.chat_template is not None:
        tell_of_base_model(model)
        model.chat_template.start()
        return
    notice(
        f"{model.name} has no chat template and was probably not trained to answer: it continues "
        "texts (turns are marked '### User:' and '### Assistant:'); "
        f"`kvarn chat -hf {REAL_MODEL}` gets a model that was"
    )


class Chat:
    """The loop around a conversation: reads turns, shows answers, obeys `/`-commands."""

    def __init__(
        self, conversation: Conversation, reader: TurnReader, session: Session | None = None
    ) -> None:
        self.conversation = conversation
        self.reader = reader
        self._session = session
        self._failed = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: notice("commands", *HELP.splitlines()),
            "/system": self.system,
            "/reset": self.reset,
            "/regen": lambda _: self.show(conversation.regenerate),
            "/undo": self.undo,
            "/stats": self.stats,
            "/save": self.save,
            "/load": self.load,
        }

    def run(self) -> int:
        """Takes turns until the end of input; the exit code."""
        warned = False
        while True:
            try:
                text = self.reader.read()
            except KeyboardInterrupt:
                say_lines("")  # the prompt's line ends
                if warned:
                    return INTERRUPTED
                warned = True
                notice("Ctrl-C again leaves, as do Ctrl-D and /quit")
                continue
            warned = False
            if text is None or text.strip() in ("/quit", "/exit", "/bye"):
                break
            try:
                self.turn(text)
                if self._session is not None:
                    self._session.save(self.conversation)
            except BrokenPipeError:
                raise  # nobody reads the answers any more
            except OSError as error:
                self._fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            except KvarnError as error:
                self._fail(str(error))
        # At a terminal the user saw each error; a pipe learns of them from the exit code.
        return int(self._failed and not self.reader.interactive)

    def _fail(self, message: str) -> None:
        self._failed = True
        notice(" ".join(message.split()))

    def turn(self, text: str) -> None:
        """A command, or a message to answer; blank ones are passed over.

        Of several lines, only `/system` is a command.
        """
        if not text.strip():
            return
        name, _, rest = text.partition(" ")
        if not text.startswith("/") or ("\n" in text and name != "/system"):
            self.show(partial(self.conversation.ask, text))
            return
        if text.startswith("//"):
            self.show(partial(self.conversation.ask, text[1:]))
            return
        command = self._commands.get(name.strip())
        if command is None:
            raise KvarnError(f"there is no command {name}: /help lists them, //… sends it as text")
        if rest.strip() and name not in ("/system", "/save", "/load"):
            raise KvarnError(f"{name} takes no more words: //… sends them as text")
        command(rest.strip())

    def show(self, answer: Callable[[Progress], Generator[str, None, None]]) -> None:
        """Writes an answer as it comes; Ctrl-C ends it, and what was written stays."""
        wrote = False
        with Interruptible() as interrupt, closing(answer(interrupt.progress)) as pieces:
            try:
                for piece in pieces:
                    interrupt.clear_bar()
                    generate(piece)
                    wrote = True
                    if interrupt.asked:
                        break
            except StoppedReading:
                pass
        if wrote:
            generate("\n")
        last = self.conversation.last
        if interrupt.asked:
            notice(
                "stopped: what was written stays in the conversation"
                if wrote
                else "stopped before the answer: the message is taken back"
            )
        elif last is not None and last.finish == "context":
            notice("the context is full: /undo, /reset, or start with a larger --ctx")
        elif last is not None and last.finish == "length":
            notice("stopped at the limit of -n")

    def system(self, text: str) -> None:
        conversation = self.conversation
        if text:
            conversation.system = None if text == "-" else text
        notice(f"system message: {conversation.system or 'none'}")

    def reset(self, _: str) -> None:
        self.conversation.reset()
        notice("the conversation is empty")

    def undo(self, _: str) -> None:
        self.conversation.undo()
        notice(f"{len(self.conversation.messages)} messages are left")

    def stats(self, _: str) -> None:
        conversation, context = self.conversation, self.conversation.context
        notice(str(context.stats))
        room = f" of {context.n_ctx}" if context.stats.kept is None else ""
        notice(
            f"{len(conversation.messages)} messages, "
            f"{conversation.n_tokens}{room} tokens in the context"
        )
        if conversation.last is not None:
            notice(
                f"last turn: {conversation.last.reused} tokens kept, {conversation.last.read} read"
            )

    def save(self, path: str) -> None:
        target = _file(path, "/save")
        self.conversation.save(target)
        notice(f"{len(self.conversation.messages)} messages written to {target}")

    def load(self, path: str) -> None:
        source = _file(path, "/load")
        self.conversation.load(source)
        notice(f"{len(self.conversation.messages)} messages read from {source}")


def _file(path: str, command: str) -> Path:
    if not path or "\0" in path:
        raise KvarnError(f"{command} needs a file: {command} FILE")
    return Path(path).expanduser()
