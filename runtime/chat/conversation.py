"""A chat over one context: messages in, answers out, and only what is new is read."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...system.errors import KvarnError
from ...system.files import write_file
from ...system.reading import MOST_TEXT, read_file
from ..context.prompt import n_common
from ..sampling import Sampler

if TYPE_CHECKING:
    from ..context import Context, Progress
    from ..context.generation import Finish
    from ..draft import Draft
    from .template import ChatTemplate


class ConversationError(KvarnError):
    """A turn that cannot be taken, or a file that holds no conversation."""


@dataclass
class Turn:
    """One answer: tokens found in the context, tokens read, and why the answer ended."""

    reused: int
    read: int
    finish: Finish | None = None


@dataclass
class Conversation:
    """Messages and the context that has read them.

    A turn renders all messages with `template` and keeps the part of the context that already
    holds their beginning. An answer stays in the context as the model wrote it, even where its
    text would be cut into other tokens.
    """

    context: Context
    template: ChatTemplate
    sampler: Sampler = field(default_factory=Sampler)
    stop: Sequence[str] = ()
    max_tokens: int | None = None
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    last: Turn | None = None
    draft: Draft | None = None
    base: int = 0
    """Tokens of the context that stand before the conversation and stay: a pack's."""
    prompt: tuple[str, int] = ("", 0)
    """The text of the last prompt, and how many tokens of the context stand for it."""
    _redraws: int = 0

    def ask(self, text: str, progress: Progress | None = None) -> Generator[str, None, None]:
        """Adds a user's message and yields the answer in pieces.

        What was yielded counts as the answer, also when the caller stops early. If the message
        cannot be read (refused by the template, too long) it is taken back and the error raised.
        """
        before = list(self.messages)
        self.messages.append({"role": "user", "content": text})
        self._redraws = 0
        return self._answer(before, progress)

    def regenerate(self, progress: Progress | None = None) -> Generator[str, None, None]:
        """Another answer to the last message; a fixed seed moves on by one, or it would repeat.

        The old answer stays where there is no new one.
        """
        before = list(self.messages)
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            raise ConversationError("nothing to answer again: the conversation is empty")
        self._redraws += 1
        return self._answer(before, progress)

    def undo(self) -> None:
        """Takes back the last message of the user and the answer to it."""
        if not self.messages:
            raise ConversationError("nothing to undo: the conversation is empty")
        while self.messages and self.messages.pop()["role"] != "user":
            pass

    def reset(self) -> None:
        """Forgets all messages, not the system message."""
        self.messages.clear()
        self._redraws = 0

    def save(self, path: Path) -> None:
        """Writes the conversation as JSON: `{"system": …, "messages": [{role, content}, …]}`.

        Raises `FileRefused` for a path that is no regular file; OSError.
        """
        data = {"system": self.system, "messages": self.messages}
        text = json.dumps(data, ensure_ascii=False, indent=2) + "\n"
        write_file(path, text.encode("utf-8", "surrogatepass"))

    def load(self, path: Path) -> None:
        """Takes up a saved conversation; raises `ConversationError` for any other file."""
        try:
            text = read_file(path, MOST_TEXT).decode("utf-8", "surrogatepass")
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConversationError(f"{path}: not a saved conversation: {error}") from error
        system, messages = checked_messages(data, path)
        self.reset()
        self.system, self.messages = system, messages

    def _answer(
        self, before: list[dict[str, str]], progress: Progress | None
    ) -> Generator[str, None, None]:
        parts: list[str] = []
        finish: Finish | None = None
        try:
            ids = self._plan()
            shared = self.context.cut_to_shared(ids, self.base)
            self.last = Turn(shared, len(ids) - shared)
            if shared < len(ids):
                self.context.prefill(ids[shared:], progress)
            generation = self.context.generation(
                (), self.max_tokens, self._drawing(), self.stop, self.draft
            )
            for piece in generation.pieces():
                parts.append(piece)
                yield piece
            self.last.finish = finish = generation.finish
        finally:
            # Also where the caller stopped early: what was shown is part of the conversation.
            if parts or finish is not None:
                self.messages.append({"role": "assistant", "content": "".join(parts)})
            else:
                self.messages[:] = before

    def _drawing(self) -> Sampler:
        seed = self.sampler.seed
        return self.sampler if seed is None else replace(self.sampler, seed=seed + self._redraws)

    def _plan(self) -> list[int]:
        """The ids of the whole conversation, those that the context holds of it as they are."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        text = self.template.render([*system, *self.messages])
        ids = self._encode(text)
        held = self._held
        kept, index = self._after_answer(text, ids)
        if kept > n_common(ids, held):
            ids = held[:kept] + ids[index:]
        if self.base + len(ids) >= self.context.most_tokens:
            after = f" after {self.base} of the pack" if self.base else ""
            raise ConversationError(
                f"the conversation has {len(ids)} tokens{after}, which leaves no room for an "
                f"answer in a context of {self.context.most_tokens}: /undo, /reset, or start with "
                "a larger --ctx"
            )
        self.prompt = text, len(ids)
        return ids

    @property
    def _held(self) -> list[int]:
        """The tokens that the context holds of the conversation."""
        return self.context.tokens[self.base :]

    def _encode(self, text: str) -> list[int]:
        """Templates write BOS themselves, or leave it to the tokenizer: never twice."""
        tokenizer = self.context.model.tokenizer
        ids = tokenizer.encode(text, special=True)
        if self.base:  # BOS stands at the beginning of the pack
            return ids[1:] if ids[:1] == [tokenizer.bos_id] else ids
        if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
            ids.insert(0, tokenizer.bos_id)
        return ids

    def _after_answer(self, text: str, ids: list[int]) -> tuple[int, int]:
        """(n, i) so that the context's first n tokens and ids[i:] together spell `text`.

        Follows the answer in the context token by token, as far as `text` agrees with it and
        `ids` has a border at the same place. (0, 0) where the last prompt is no beginning of it.
        """
        before, n = self.prompt
        held = self._held
        if not before or not text.startswith(before) or len(held) < n:
            return 0, 0
        piece = self.context.model.tokenizer.piece
        rest = text[len(before) :].encode("utf-8", "surrogateescape")
        borders = _borders(rest, [piece(i) for i in ids])
        best = (n, borders[len(rest)]) if len(rest) in borders else (0, 0)
        for count, token in enumerate(held[n:], n + 1):
            spelt = piece(token)
            if not rest.startswith(spelt):
                break
            rest = rest[len(spelt) :]
            if len(rest) in borders:
                best = count, borders[len(rest)]
        return best


def _borders(rest: bytes, pieces: list[bytes]) -> dict[int, int]:
    """How many bytes of `rest` are left → the piece that begins there, reading from the end."""
    borders = {0: len(pieces)}
    left = 0
    for index in range(len(pieces) - 1, -1, -1):
        spelt = pieces[index]
        end = len(rest) - left
        if not rest.endswith(spelt, 0, end):
            # SentencePiece puts a space before a text that follows a special token.
            spelt = spelt.removeprefix(b" ")
            if not rest.endswith(spelt, 0, end):
                break
        left += len(spelt)
        borders[left] = index
        if left >= len(rest):
            break
    return borders


def checked_messages(data: Any, path: Path) -> tuple[str | None, list[dict[str, str]]]:
    """System message and messages of a saved conversation; `ConversationError` for other data."""
    expected = f'{path}: not a saved conversation: expected {{"system": …, "messages": […]}}'
    if not isinstance(data, dict) or not isinstance(data.get("messages"), list):
        raise ConversationError(expected)
    system = data.get("system")
    if system is not None and not isinstance(system, str):
        raise ConversationError(f"{expected}, found a system message that is no text")
    for i, message in enumerate(data["messages"]):
        if not isinstance(message, dict) or {type(v) for v in message.values()} != {str}:
            raise ConversationError(f"{expected}, found that message {i} is no {{role, content}}")
        if message.keys() != {"role", "content"}:
            raise ConversationError(f"{expected}, found the keys {', '.join(message)}")
    return system, [dict(message) for message in data["messages"]]
