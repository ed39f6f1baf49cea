"""A chat over one context: messages in, answers out; only new tokens are read."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...system.errors import KvarnError
from ...system.files import write_file
from ...system.reading import MOST_TEXT, read_file
from ...system.spelling import spelt
from ..context.reading.prompt import n_common, prompt_ids
from ..sampling import Sampler
from ..tokenizer import Rendered
from .template import ChatTemplate

if TYPE_CHECKING:
    from ..context import Context, Progress
    from ..context.generation import Finish
    from ..draft import Draft


class ConversationError(KvarnError):
    """A turn that is not possible, or a file that holds no conversation."""


@dataclass
class Turn:
    """One answer: how many tokens the context held already, were read and were generated, and why
    the answer ended."""

    reused: int
    read: int
    finish: Finish | None = None
    n_tokens: int = 0


@dataclass
class Conversation:
    """Messages and the context that has read them.

    A turn renders all messages with `template` (by default the model's, or a plain one), and reads
    only what the context does not hold already. An answer stays in the context as the model wrote
    it, even where the tokenizer would encode its text as other tokens. sampler: by default, the
    model's. stop: texts at which an answer ends; they are not part of it. base: tokens at the start
    of the context, such as those of a pack, that are not part of the conversation.
    """

    context: Context
    template: ChatTemplate = None  # type: ignore[assignment]  # made right after
    sampler: Sampler | None = None
    stop: str | Sequence[str] = ()
    max_tokens: int | None = None
    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    last: Turn | None = None
    draft: Draft | None = None
    base: int = 0
    prompt: tuple[Rendered, int] = (Rendered(), 0)
    """The text of the last prompt, and its number of tokens in the context."""
    _redraws: int = 0

    def __post_init__(self) -> None:
        if self.template is None:
            self.template = ChatTemplate.of(self.context.model)

    def ask(self, text: str, progress: Progress | None = None) -> Generator[str, None, None]:
        """Adds a user's message and yields the answer in pieces.

        If the caller stops early, the answer is what was yielded. A message that cannot be read
        (the template refuses it, it is too long) is removed, and the error raised.
        """
        before = list(self.messages)
        self.messages.append({"role": "user", "content": text})
        self._redraws = 0
        return self._answer(before, progress)

    def regenerate(self, progress: Progress | None = None) -> Generator[str, None, None]:
        """Answers the last message again. A fixed seed grows by one, or nothing would change.

        The old answer stays if there is no new one.
        """
        before = list(self.messages)
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            raise ConversationError("nothing to answer again: the conversation is empty")
        self._redraws += 1
        return self._answer(before, progress)

    @property
    def n_tokens(self) -> int:
        """Tokens of the context that stand for the messages as they are now. `undo` leaves the
        tokens of what it removes in the context until the next turn."""
        if not self.messages:
            return self.base
        is_answered = self.messages[-1]["role"] == "assistant"
        messages = self.messages[:-1] if is_answered else self.messages
        if self._rendered(messages) == self.prompt[0]:
            return len(self.context.tokens)
        ids = self._ids(self._rendered(self.messages, add_generation_prompt=False))
        return self.base + n_common(ids, self._cached)

    def undo(self) -> None:
        """Removes the last message of the user and the answer to it."""
        if not self.messages:
            raise ConversationError("nothing to undo: the conversation is empty")
        while self.messages and self.messages.pop()["role"] != "user":
            pass
        self.last = None

    def reset(self) -> None:
        """Removes all messages but the system message."""
        self.messages.clear()
        self.last = None
        self._redraws = 0

    def save(self, path: Path) -> None:
        """Writes the conversation as JSON: `{"system": …, "messages": [{role, content}, …]}`.

        Raises `FileRefused` for a path that is no regular file; OSError.
        """
        write_file(path, encoded({"system": self.system, "messages": self.messages}))

    def load(self, path: Path) -> None:
        """Loads a saved conversation; raises `ConversationError` for any other file."""
        data = decoded(read_file(path, MOST_TEXT), path)
        self.reset()
        self.system, self.messages = data.get("system"), data["messages"]

    def _answer(
        self, before: list[dict[str, str]], progress: Progress | None
    ) -> Generator[str, None, None]:
        parts: list[str] = []
        finish: Finish | None = None
        try:
            ids = self._plan()
            shared = self.context.cut_to_shared(ids, self.base)
            self.last = None
            if shared < len(ids):
                self.context.prefill(ids[shared:], progress)
            self.last = Turn(shared, len(ids) - shared)
            generation = self.context.generation(
                (), self.max_tokens, self._drawing(), self._stops(), self.draft
            )
            for piece in generation.pieces():
                parts.append(piece)
                self.last.n_tokens = generation.n_tokens
                yield piece
            self.last.n_tokens = generation.n_tokens
            self.last.finish = finish = generation.finish
        finally:
            # Also where the caller stopped early: what was yielded is part of the conversation.
            if parts or finish is not None:
                self.messages.append({"role": "assistant", "content": "".join(parts)})
            else:
                self.messages[:] = before

    def _stops(self) -> Sequence[str]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        return [*stops, *self.template.stop]

    def _drawing(self) -> Sampler | None:
        if self.sampler is None or self.sampler.seed is None:
            return self.sampler
        return replace(self.sampler, seed=self.sampler.seed + self._redraws)

    def _plan(self) -> list[int]:
        """The ids of the whole conversation: those of the context for the text that it holds."""
        text = self._rendered(self.messages)
        ids = self._ids(text)
        cached = self._cached
        kept, index = self._after_answer(text, ids)
        if kept > n_common(ids, cached):
            ids = cached[:kept] + ids[index:]
        if self.base + len(ids) >= self.context.most_tokens:
            after = f" after {self.base} of the pack" if self.base else ""
            raise ConversationError(
                f"the conversation has {len(ids)} tokens{after}, which leaves no room for an "
                f"answer in a context of {self.context.most_tokens}: /undo, /reset, or start with "
                f"a larger {spelt('ctx')}"
            )
        self.prompt = text, len(ids)
        return ids

    def _ids(self, text: Rendered) -> list[int]:
        """The ids of a text. BOS stands where the context begins, which may be in a pack."""
        return prompt_ids(self.context.model.tokenizer, text, begins=not self.base)

    def _rendered(
        self, messages: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> Rendered:
        """The text of the system message and `messages`."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return self.template.render(
            [*system, *messages], add_generation_prompt=add_generation_prompt
        )

    @property
    def _cached(self) -> list[int]:
        """The tokens of the conversation that the context holds."""
        return self.context.tokens[self.base :]

    def _after_answer(self, text: Rendered, ids: list[int]) -> tuple[int, int]:
        """(n, i) so that the context's first n tokens, followed by ids[i:], spell `text`.

        Follows the answer in the context token by token, while `text` agrees with it, to the last
        place where a token of `ids` begins, too. (0, 0) if `text` does not begin with the last
        prompt.
        """
        before, n = self.prompt
        cached = self._cached
        if not before or not text.continues(before) or len(cached) < n:
            return 0, 0
        piece = self.context.model.tokenizer.piece
        rest = text[len(before) :].encode("utf-8", "surrogateescape")
        borders = _borders(rest, [piece(i) for i in ids])
        best = (n, borders[len(rest)]) if len(rest) in borders else (0, 0)
        for count, token in enumerate(cached[n:], n + 1):
            spelt = piece(token)
            if not rest.startswith(spelt):
                break
            rest = rest[len(spelt) :]
            if len(rest) in borders:
                best = count, borders[len(rest)]
        return best


def _borders(rest: bytes, pieces: list[bytes]) -> dict[int, int]:
    """Bytes from a place in `rest` to its end → index of the piece that begins there."""
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


def encoded(data: dict[str, Any]) -> bytes:
    """The JSON of a conversation."""
    text = json.dumps(data, ensure_ascii=False, indent=2) + "\n"
    return text.encode("utf-8", "surrogatepass")


def decoded(data: bytes, path: Path) -> dict[str, Any]:
    """The data of a saved conversation, "messages" checked; `ConversationError` for other bytes."""
    try:
        saved = json.loads(data.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ConversationError(f"{path}: not a saved conversation: {error}") from error
    expected = f'{path}: not a saved conversation: expected {{"system": …, "messages": […]}}'
    if not isinstance(saved, dict) or not isinstance(saved.get("messages"), list):
        raise ConversationError(expected)
    system = saved.get("system")
    if system is not None and not isinstance(system, str):
        raise ConversationError(f"{expected}, found a system message that is not text")
    for i, message in enumerate(saved["messages"]):
        if not isinstance(message, dict) or {type(v) for v in message.values()} != {str}:
            raise ConversationError(f"{expected}, found that message {i} is not {{role, content}}")
        if message.keys() != {"role", "content"}:
            raise ConversationError(f"{expected}, found the keys {', '.join(message)}")
    return saved
