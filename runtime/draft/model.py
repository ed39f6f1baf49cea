"""A draft by a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ...system.text import one_line
from .base import Draft, Drafter, VerifyingModel, checked_option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..gguf import GGUFFile
    from .base import VerifyingContext
    from .lengths import Lengths

    F32 = NDArray[np.float32]

FEW = 16
"""Tokens up to which reading what was generated counts as a pass of the draft."""


class GuessingContext(Protocol):
    """What a draft needs of the context of the model that guesses."""

    @property
    def tokens(self) -> list[int]: ...
    @property
    def n_ctx(self) -> int: ...
    def cut_to_shared(self, ids: Sequence[int], /) -> int: ...
    def truncate(self, n_tokens: int, /) -> None: ...
    def prefill(self, prompt: Sequence[int], /) -> F32: ...
    def decode(self, token: int, /) -> F32: ...


class GuessingModel(VerifyingModel, Protocol):
    """What a draft needs of the model that guesses: `kvarn.load` makes one."""

    def context(self, n_ctx: int, /) -> GuessingContext: ...
    def tell(self, line: str, /) -> None: ...


class DraftModel(Draft):
    """A smaller model of the same vocabulary guesses; its most likely tokens are the draft.

    model: made by `kvarn.load`. max_tokens: the longest draft. min_probability: a draft ends before
    a token to which the model gives less. How long drafts are, up to `max_tokens`, follows from how
    often they were right and from the seconds that passes of both models take.

    It has a context of its own in memory, of as many tokens as the context that verifies and at
    most those that the model was trained on, beyond which it guesses nothing. The context stays
    between generations, which read only what is new; those that take turns read again. A token is
    accepted if it is what the sampler draws from the logits of the verifying model, so the
    distribution is that without a draft.

    Raises `DraftError` for an option out of its range, and `check` for a model of another
    vocabulary. Source: Leviathan et al. 2023, with a draft that is certain of its tokens.
    """

    max_tokens = 16
    min_probability = 0.4

    def __init__(
        self,
        model: GuessingModel,
        max_tokens: int = max_tokens,
        min_probability: float = min_probability,
    ) -> None:
        check_options(max_tokens, min_probability)
        self.model, self.max_tokens, self.min_probability = model, max_tokens, min_probability
        self._context: GuessingContext | None = None
        self._checked: GGUFFile | None = None
        self.drafter: ModelDrafter | None = None
        """The one whose tokens the context holds."""

    def check(self, file: GGUFFile) -> None:
        if file is not self._checked:
            from .vocabulary import check_vocabulary

            check_vocabulary(self.model.file, file)
            self._checked = file

    def start(self, context: VerifyingContext) -> ModelDrafter:
        from .lengths import Lengths

        self.check(context.model.file)
        ratio = self.model.file.n_bytes / context.model.file.n_bytes
        n_vocab = min(self.model.config.n_vocab, context.model.config.n_vocab)
        drafter = ModelDrafter(self, self._context_for(context.n_ctx), Lengths(ratio), n_vocab)
        drafter.read(context.tokens)
        return drafter

    def _context_for(self, n_ctx: int) -> GuessingContext:
        """The context that guesses, with room for so many tokens."""
        trained = self.model.config.n_ctx_train
        if self._context is None or self._context.n_ctx < min(n_ctx, trained):
            if n_ctx > trained:
                name = one_line(self.model.file.path.name)
                self.model.tell(
                    f"the draft {name} guesses up to token {trained:,}, the most it was trained on"
                )
            self._context = self.model.context(min(n_ctx, trained))
        return self._context


class ModelDrafter(Drafter):
    """Reads what the other model has read, and goes on greedily as far as that pays."""

    def __init__(
        self, draft: DraftModel, context: GuessingContext, lengths: Lengths, n_vocab: int
    ) -> None:
        self._draft, self._context, self._n_vocab = draft, context, n_vocab
        self.lengths = lengths
        self._drafted: Sequence[int] = ()
        self._n_seen = self._n_read = 0
        """Tokens that were seen, and how many of them the context has read."""
        self._is_lost = False
        """Whether there are tokens that the model does not have: those that pad a vocabulary."""

    def verified(self, n_tokens: int, seconds: float) -> None:
        self.lengths.verifying.add(n_tokens, seconds)

    def read(self, tokens: Sequence[int]) -> None:
        """Read the tokens before the answer, but for those that no draft can follow."""
        self._n_seen = len(tokens)
        self._is_lost = max(tokens, default=0) >= self._n_vocab
        if 0 < len(tokens) < self._context.n_ctx and not self._is_lost:
            self._catch_up(tokens)

    def propose(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        new = tokens[self._n_seen :]
        self.lengths.learn(self._drafted, new)
        self._n_seen, self._drafted = len(tokens), ()
        self._is_lost |= max(new, default=0) >= self._n_vocab
        # The last token of a draft is not read.
        longest = min(n, self._draft.max_tokens, self._context.n_ctx - len(tokens) + 1)
        if longest > 0 and not self._is_lost and (n := self.lengths.next(longest)):
            self._drafted = self._guesses(tokens, n)
        return self._drafted

    def _guesses(self, tokens: Sequence[int], n: int) -> list[int]:
        """Up to `n` tokens, each the most likely one after those before it."""
        guesses: list[int] = []
        logits = self._catch_up(tokens)
        while True:
            token, probability = likeliest(logits[: self._n_vocab])
            if probability < self._draft.min_probability:
                return guesses
            guesses.append(token)
            if len(guesses) == n:
                return guesses
            logits = self._read([token])

    def _catch_up(self, tokens: Sequence[int]) -> F32:
        """Read what is missing of the tokens; returns the logits after the last one."""
        context, draft = self._context, self._draft
        if draft.drafter is not self:
            n = context.cut_to_shared(tokens)
            draft.drafter = self
        else:
            held, most = context.tokens, len(tokens) - 1
            n = min(self._n_read, len(held), most)
            while n < min(len(held), most) and held[n] == tokens[n]:
                n += 1
            context.truncate(n)
        self._n_read = len(tokens)
        return self._read(tokens[n:])

    def _read(self, tokens: Sequence[int]) -> F32:
        """Read tokens of any number, and count what that takes where they are few."""
        from ..stats import Clock

        clock = Clock()
        one = len(tokens) == 1
        logits = self._context.decode(tokens[0]) if one else self._context.prefill(tokens)
        if 0 < len(tokens) <= FEW:
            self.lengths.drafting.add(len(tokens), clock.read()[0])
        return logits


def check_options(max_tokens: int, min_probability: float) -> None:
    """Raises `DraftError` for an option of `DraftModel` out of its range."""
    checked_option("max_tokens", max_tokens, 1, 255)
    checked_option("min_probability", min_probability, 0, 1)


def likeliest(logits: F32) -> tuple[int, float]:
    """The most likely token, and its share of the softmax."""
    import numpy as np

    token = int(np.argmax(logits))
    return token, float(1 / np.exp(logits - logits[token]).sum())
