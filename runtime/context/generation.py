"""Generation: sample, yield, decode, until something ends it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from ...system.values import count_named
from ..sampling import NotFinite, Sampler
from ..stats import Clock
from ..stops import StopMatcher, stop_strings
from ..token_ids import TokenIds
from .reading.prompt import ContextError

if TYPE_CHECKING:
    from ..draft import Draft
    from ..sampling.state import SamplerState
    from ..tokenizer import Tokenizer
    from .context import Context

Finish = Literal["stop", "eos", "length", "context"]


class AnswerText:
    """The text of an answer, token by token, up to a stop string; text that may begin one is held
    back. special: it spells out control tokens."""

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str], special: bool = False) -> None:
        self._detokenizer = tokenizer.stream(special)
        self._stops = StopMatcher(stops)

    @property
    def stop(self) -> str:
        """The stop string that has ended the text; "": none has."""
        return self._stops.stop

    def push(self, token: int) -> str:
        """The text that this token completes."""
        return self._stops.push(self._detokenizer.push(token))

    def flush(self) -> str:
        """The rest of the text, where no stop string has ended it."""
        return self._stops.push(self._detokenizer.flush()) + self._stops.flush()


def before_stop(
    tokenizer: Tokenizer, tokens: Sequence[int], stops: Iterable[str], special: bool = False
) -> list[int]:
    """The tokens of an answer up to the stop string that ends its text: as they were generated; of
    one that has text on both sides, that before it is encoded anew."""
    stream, matcher = tokenizer.stream(special), StopMatcher(stops)
    shown, ends, n = "", [0], 0
    for token in tokens:
        piece = stream.push(token)
        n += len(piece)
        ends.append(n)
        shown += matcher.push(piece)
    k = bisect_left(ends, len(shown))
    if k == len(ends) or ends[k] != len(shown):
        k -= 1
        while k and ends[k] == ends[k - 1]:  # it has a part of the next character
            k -= 1
    rest = shown[ends[k] :]
    ids = tokenizer.encode(rest)
    if rest[:1] == " " and b"".join(map(tokenizer.piece, ids)) == f" {rest}".encode():
        ids = tokenizer.encode(rest[1:])  # the vocabulary puts a space before a text
    return [*tokens[:k], *ids]


def _no_guess(token: int, most: int) -> Sequence[int]:
    return ()


class Generation:
    """One answer: an iterator of ids or of text that knows why it ended.

    finish: None while running; "eos" an end-of-generation token, or a constraint that nothing can
    extend, "stop" a stop string, "length" `max_tokens` were made, "context" the context is full.
    end_token: the token of "eos", if one was sampled. last_token: the last one of the answer.

    The last sampled token is not in the context: a following prompt continues without it.

    With a draft, one pass reads several tokens. Each token is still sampled from the logits after
    the tokens before it, with the same random numbers, and drafted tokens are used as long as they
    are what was sampled. So the ids are those without a draft, for any sampler: see
    `Context.decode`.

    What decodes several answers together reads the prompts itself and drives each by `begin`, and
    then `sample`, `goes_on` and, once for each token that is to be read, `guess`: the draft to read
    with it, of so many tokens at most.
    """

    def __init__(
        self,
        context: Context,
        prompt: str | Sequence[int],
        max_tokens: int | None,
        sampler: Sampler | None,
        stop: str | Iterable[str],
        draft: Draft | None = None,
    ) -> None:
        self.context = context
        self.finish: Finish | None = None
        self.end_token: int | None = None
        self.last_token: int | None = None
        self.n_tokens = 0
        self._prompt = prompt
        self._max_tokens = None if max_tokens is None else count_named("max_tokens", max_tokens)
        sampler = sampler if sampler is not None else context.model.sampler()
        self.sampler: SamplerState = sampler.start(
            context.model.tokenizer if sampler.needs_tokenizer else None
        )
        self._stop = stop_strings(stop)
        self._draft = draft
        self.guess: Callable[[int, int], Sequence[int]] = _no_guess
        if draft is not None:
            draft.prepare(context)

    def ids(self, stop_at_eos: bool = True) -> Iterator[int]:
        """Read the prompt, then yield token ids. Raises `ContextError` where the context was used
        otherwise since the last one, as by another answer."""
        context = self.context
        if prompt := context.encode(self._prompt):
            context.prefill(prompt)
        if not self.begin():
            return
        while (token := self.sample(stop_at_eos)) is not None:
            place = self._place()
            yield token
            if not self.goes_on():
                return
            if self._place() != place:
                raise ContextError(
                    "cannot go on with an answer: its context was read or cut otherwise since the "
                    "last token; generate one answer after the other, or each in its own context"
                )
            context.decode(token, self.guess(token, context.draft_room))

    def _place(self) -> tuple[int, int]:
        """Where the context is: another place once anybody else has read or cut it."""
        return len(self.context.tokens), self.context.stats.prefilled_tokens

    def begin(self) -> bool:
        """Begin after the tokens of the context, which are the prompt; whether a token follows."""
        self.sampler.accept_all(self.context.tokens)
        if self._is_long_enough():
            return False
        if self._draft is not None:
            self.guess = self._guesses(self._draft)
        return True

    def sample(self, stop_at_eos: bool = True) -> int | None:
        """The next token; None where that ends the answer."""
        context, sampler = self.context, self.sampler
        try:
            token = sampler.sample(context.logits)
        except NotFinite:
            context.store.check_saved()  # a pack may be why
            raise
        if stop_at_eos and token in context.model.tokenizer.eog_ids:
            self.finish, self.end_token = "eos", token
            return None
        sampler.accept(token)
        self.n_tokens += 1
        self.last_token = token
        return token

    def goes_on(self) -> bool:
        """Whether the token that was sampled is to be read, as another one follows."""
        if self.sampler.is_complete:
            self.finish = "eos"
            return False
        if self._is_long_enough():
            return False
        if len(self.context.tokens) >= self.context.most_tokens:
            self.finish = "context"
            return False
        return True

    def _is_long_enough(self) -> bool:
        if self.n_tokens != self._max_tokens:
            return False
        self.finish = "length"
        return True

    def _guesses(self, draft: Draft) -> Callable[[int, int], Sequence[int]]:
        """A function that drafts the tokens after a sampled one."""
        context, stats = self.context, self.context.stats
        clock = Clock()
        drafter = draft.start(context, self.sampler)
        stats.add_draft_start(clock)
        tokens, n_read, decoding = TokenIds(context.tokens), 0, stats.passes_seconds

        def guess(token: int, most: int) -> Sequence[int]:
            nonlocal n_read, decoding
            tokens.append(token)
            if context.reads_ahead(token):
                return ()
            clock = Clock()
            if n_read:
                drafter.verified(n_read, stats.passes_seconds - decoding)
            room = min(most, context.draft_room)
            if self._max_tokens is not None:  # the last token is sampled and not read
                room = min(room, self._max_tokens - self.n_tokens - 1)
            draft = drafter.propose(tokens, room)
            n_read, decoding = 1 + len(draft), stats.passes_seconds
            stats.add_guesses(clock)
            return draft

        return guess

    def pieces(
        self, special: bool = False, sampled: Callable[[int], None] | None = None
    ) -> Iterator[str]:
        """Read the prompt, then yield text; text that may begin a stop string is held back.

        special: the text spells out control tokens. sampled: gets each token, before its text.
        """
        answer = self.text(special)
        for token in self.ids():
            if sampled is not None:
                sampled(token)
            if text := answer.push(token):
                yield text
            if answer.stop:
                self.finish = "stop"
                return
        if text := answer.flush():
            yield text

    def text(self, special: bool = False) -> AnswerText:
        """What makes text of its tokens."""
        return AnswerText(self.context.model.tokenizer, self._stop, special)
