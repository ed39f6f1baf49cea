"""Generation: sample, yield, decode, until something ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from ..sampling import NotFinite, Sampler
from ..stops import StopMatcher, stop_strings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..draft import Draft
    from ..loading.loaded_model import LoadedModel
    from ..store import KVStore

Finish = Literal["stop", "eos", "length", "context"]


class GenerationContext(Protocol):
    """What a generation needs of a context."""

    model: LoadedModel
    tokens: list[int]

    @property
    def n_ctx(self) -> int: ...
    @property
    def most_tokens(self) -> int: ...
    @property
    def draft_room(self) -> int: ...
    @property
    def logits(self) -> NDArray[np.float32]: ...
    @property
    def store(self) -> KVStore: ...
    def encode(self, prompt: str | Sequence[int], /) -> list[int]: ...
    def prefill(self, prompt: list[int], /) -> object: ...
    def decode(self, token: int, drafted: Sequence[int], /) -> object: ...
    def reads_ahead(self, token: int, /) -> bool: ...


class Generation:
    """One answer: an iterator of ids or of text that knows why it ended.

    finish: None while running; "eos" an end-of-generation token, "stop" a stop string, "length"
    `max_tokens` were made, "context" the context is full.

    The last sampled token is not in the context: a following prompt continues without it.

    With a draft, one pass reads several tokens. Each token is still sampled from the logits after
    the tokens before it, with the same random numbers, and drafted tokens are used as long as they
    are what was sampled. So the distribution is that without a draft, for any sampler. The ids are
    the same too, unless the rounding in `Context.decode` decides between two tokens: in 1 of 12
    greedy runs of 128 tokens of the default model, for which activations are rounded to int8.
    """

    def __init__(
        self,
        context: GenerationContext,
        prompt: str | Sequence[int],
        max_tokens: int | None,
        sampler: Sampler | None,
        stop: str | Iterable[str],
        draft: Draft | None = None,
    ) -> None:
        self.context = context
        self.finish: Finish | None = None
        self.n_tokens = 0
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._sampler = (sampler if sampler is not None else Sampler()).start()
        self._stop = stop_strings(stop)
        self._draft = draft

    def ids(self, stop_at_eos: bool = True) -> Iterator[int]:
        """Read the prompt, then yield token ids."""
        context, sampler = self.context, self._sampler
        if prompt := context.encode(self._prompt):
            context.prefill(prompt)
        sampler.accept_all(context.tokens)
        guess = self._guesses()
        ends = context.model.tokenizer.eog_ids if stop_at_eos else frozenset()
        while self._max_tokens is None or self.n_tokens < self._max_tokens:
            try:
                token = sampler.sample(context.logits)
            except NotFinite:
                context.store.check_saved()  # a pack may be why
                raise
            if token in ends:
                self.finish = "eos"
                return
            sampler.accept(token)
            self.n_tokens += 1
            yield token
            if self.n_tokens == self._max_tokens:
                break
            if len(context.tokens) >= context.most_tokens:
                self.finish = "context"
                return
            context.decode(token, guess(token))
        self.finish = "length"

    def _guesses(self) -> Callable[[int], Sequence[int]]:
        """A function that drafts the tokens after a sampled one."""
        if self._draft is None:
            return lambda token: ()
        context, drafter = self.context, self._draft.start()
        tokens = list(context.tokens)

        def guess(token: int) -> Sequence[int]:
            tokens.append(token)
            if context.reads_ahead(token):
                return ()
            room = context.draft_room
            if self._max_tokens is not None:  # the last token is sampled and not read
                room = min(room, self._max_tokens - self.n_tokens - 1)
            return drafter.propose(tokens, room)

        return guess

    def pieces(self) -> Iterator[str]:
        """Read the prompt, then yield text; text that may begin a stop string is held back."""
        detokenizer = self.context.model.tokenizer.stream()
        stops = StopMatcher(self._stop)
        for token in self.ids():
            text, stopped = stops.push(detokenizer.push(token))
            if text:
                yield text
            if stopped:
                self.finish = "stop"
                return
        text, stopped = stops.push(detokenizer.flush())
        text += "" if stopped else stops.flush()
        if text:
            yield text
