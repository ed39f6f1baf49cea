"""Questions to packs: an answer, and the passages that weighed most in it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..chat.conversation import Conversation
from ..context.planning.request import ContextRequest
from ..lens.passages import PASSAGES, Passage, Source
from ..lens.quotes import quotes_of
from ..lens.weights import NEUTRAL, result_of, weighing
from ..sampling import Sampler
from ..store import Disk
from . import MAX_TOKENS

if TYPE_CHECKING:
    from ..context import Context, Progress
    from ..context.generation import Finish
    from ..lens.weights import Open
    from ..model import Model

_COMPARED = 32  # tokens of the answer to a neutral question


@dataclass(frozen=True)
class Answer:
    """What a pack answered. passages: those that weighed most, the largest share first."""

    text: str
    finish: Finish | None
    n_tokens: int
    passages: list[Passage] = field(default_factory=list)


@dataclass(frozen=True)
class Asker:
    """How packs are asked: the question is a message of a conversation that begins after a pack.

    open: opens the context of a request. passages: how many an answer names.
    """

    open: Open
    sampler: Sampler
    max_tokens: int | None = MAX_TOKENS
    stop: str | Sequence[str] = ()
    system: str | None = None
    passages: int = PASSAGES

    def pieces(
        self, request: ContextRequest, question: str, progress: Progress | None = None
    ) -> Generator[str, None, Answer]:
        """Yields the answer in pieces; returns it with its passages, for which it takes about as
        long again. request: of a context whose store is a pack, which stays as it is."""
        with self.open(request) as context:
            n, tokenizer, parts = len(context.tokens), context.model.tokenizer, []
            talk = Conversation(
                context,
                sampler=self.sampler,
                stop=self.stop,
                max_tokens=self.max_tokens,
                system=self.system,
                base=n,
            )
            for piece in talk.ask(question, progress):
                parts.append(piece)
                yield piece
            tokens, last = list(context.tokens), talk.last
            assert last is not None  # there was an answer
            neutral = self._neutral(context, n) if self.passages else []
        quotes = []
        if self.passages:
            weights = result_of(weighing(self.open, request, tokens[:n], tokens[n:], neutral))
            quotes = quotes_of(tokenizer, tokens[:n], weights, [Source(0, n)])[: self.passages]
        return Answer("".join(parts), last.finish, last.n_tokens, quotes)

    def answer(self, request: ContextRequest, question: str) -> Answer:
        """What `pieces` returns, in one go."""
        return result_of(self.pieces(request, question))

    def _neutral(self, context: Context, base: int) -> list[int]:
        """The ids of a neutral question and the beginning of its answer."""
        talk = Conversation(
            context, sampler=Sampler(temp=0), max_tokens=_COMPARED, system=self.system, base=base
        )
        for _ in talk.ask(NEUTRAL):
            pass
        return context.tokens[base:]


def ask(
    model: Model,
    pack: str | Path,
    question: str,
    max_tokens: int | None = MAX_TOKENS,
    sampler: Sampler | None = None,
    system: str | None = None,
) -> Answer:
    """Ask a pack, which stays as it is; name the passages that weighed most in the answer.

    pack: its folder, see `build_pack`. sampler: by default the likeliest tokens. system: a system
    message. Raises `PackError` for a pack of another model, `ConversationError` where no room is
    left for an answer.
    """
    asker = Asker(model.open, sampler or Sampler(temp=0), max_tokens, system=system)
    return asker.answer(ContextRequest(store=Disk(pack, read_only=True)), question)
