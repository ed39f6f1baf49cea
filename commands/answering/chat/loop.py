"""The loop around a conversation: reads turns, shows answers, obeys `/`-commands."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ....system.errors import KvarnError, message_of
from ....system.terminal import generate, say, say_lines
from ...terminal.interrupt import Interruptible, ReadingStopped

if TYPE_CHECKING:
    from ....runtime.chat.conversation import Conversation
    from ....runtime.chat.session import Session
    from ....runtime.context import Progress
    from .input import TurnReader

INTERRUPTED = 130

_HELP = '''\
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


class Chat:
    """A conversation, what its turns are read from, and the session that it is saved in."""

    def __init__(
        self, conversation: Conversation, reader: TurnReader, session: Session | None = None
    ) -> None:
        self.conversation = conversation
        self.reader = reader
        self._session = session
        self._failed = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: say("commands", *_HELP.splitlines()),
            "/system": self.system,
            "/reset": self.reset,
            "/regen": lambda _: self.show(conversation.regenerate),
            "/undo": self.undo,
            "/stats": self.stats,
            "/save": self.save,
            "/load": self.load,
        }

    def run(self) -> int:
        """Takes turns until the end of input; returns the exit code."""
        warned = False
        while True:
            try:
                text = self.reader.read()
            except KeyboardInterrupt:
                say_lines("")  # the prompt's line ends
                if warned:
                    return INTERRUPTED
                warned = True
                say("Ctrl-C again leaves, as do Ctrl-D and /quit")
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
            except (OSError, KvarnError) as error:
                self._fail(message_of(error))
        # At a terminal the user saw each error; a pipe learns of them from the exit code.
        return int(self._failed and not self.reader.interactive)

    def _fail(self, message: str) -> None:
        self._failed = True
        say(" ".join(message.split()))

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
            except ReadingStopped:
                pass
        if wrote:
            generate("\n")
        last = self.conversation.last
        if interrupt.asked:
            say(
                "stopped: what was written stays in the conversation"
                if wrote
                else "stopped before the answer: the message is taken back"
            )
        elif last is not None and last.finish == "context":
            say("the context is full: /undo, /reset, or start with a larger --ctx")
        elif last is not None and last.finish == "length":
            say("stopped at the limit of -n")

    def system(self, text: str) -> None:
        conversation = self.conversation
        if text:
            conversation.system = None if text == "-" else text
        say(f"system message: {conversation.system or 'none'}")

    def reset(self, _: str) -> None:
        self.conversation.reset()
        say("the conversation is empty")

    def undo(self, _: str) -> None:
        self.conversation.undo()
        say(f"{len(self.conversation.messages)} messages are left")

    def stats(self, _: str) -> None:
        conversation, context = self.conversation, self.conversation.context
        say(str(context.stats))
        room = f" of {context.n_ctx}" if context.stats.kept is None else ""
        say(
            f"{len(conversation.messages)} messages, "
            f"{conversation.n_tokens}{room} tokens in the context"
        )
        if conversation.last is not None:
            say(f"last turn: {conversation.last.reused} tokens kept, {conversation.last.read} read")

    def save(self, path: str) -> None:
        target = _file(path, "/save")
        self.conversation.save(target)
        say(f"wrote {len(self.conversation.messages)} messages to {target}")

    def load(self, path: str) -> None:
        source = _file(path, "/load")
        self.conversation.load(source)
        say(f"read {len(self.conversation.messages)} messages from {source}")


def _file(path: str, command: str) -> Path:
    if not path or "\0" in path:
        raise KvarnError(f"{command} needs a file: {command} FILE")
    return Path(path).expanduser()
