"""A draft by a smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING

from ...system.text import one_line
from .base import Draft, checked_option
from .lengths import Lengths

if TYPE_CHECKING:
    from ..context import Context
    from ..gguf import GGUFFile
    from ..model import Model
    from ..sampling.state import SamplerState
    from .guessing import GuessingContext, ModelDrafter


class DraftModel(Draft):
    """A smaller model of the same vocabulary guesses: what the sampler would draw from its logits.

    model: made by `kvarn.load`. max_tokens: the longest draft. min_probability: a draft ends where
    the model gives no token so much. How long drafts are, up to `max_tokens`, follows from the
    probabilities of their guesses, from how often such guesses were right, and from the seconds
    that passes of both models take.

    It has a context of its own in memory, of as many tokens as the context that verifies and at
    most those that the model was trained on, beyond which it guesses nothing. The context stays
    between generations, which read only what is new; those that take turns read again. So does what
    was learnt of guesses and passes, as long as the same model verifies.

    A copy of the sampler guesses, with its penalties, its constraint and the same random numbers. A
    guess is accepted if it is what the sampler then draws from the logits of the verifying model,
    so the distribution is that without a draft, and two models that agree draw alike.

    Raises `DraftError` for an option out of its range, and `prepare` for a model of another
    vocabulary. Compare Leviathan et al. 2023, who accept or reject guesses by lots.
    """

    max_tokens = 16
    min_probability = 0.0

    def __init__(
        self,
        model: Model,
        max_tokens: int = max_tokens,
        min_probability: float = min_probability,
    ) -> None:
        check_options(max_tokens, min_probability)
        self.model, self.max_tokens, self.min_probability = model, max_tokens, min_probability
        self._guessing: GuessingContext | None = None
        self._lengths = Lengths(1.0)
        self._checked: GGUFFile | None = None

    def size_for(self, n_ctx: int) -> int:
        """The tokens of the context that guesses for one of `n_ctx`."""
        return min(n_ctx, self.model.config.n_ctx_train)

    def prepare(self, context: Context) -> None:
        """Open the context that guesses. Raises `DraftError` for a model of another vocabulary, and
        `StoreError` where memory has no room."""
        self._check(context.model.file)
        self._guessing_for(context.n_ctx)

    def sibling(self) -> DraftModel:
        """One with a context of its own; what is learnt of guesses and passes is shared, once
        either was prepared for the model that verifies."""
        other = copy(self)
        other._guessing = None
        return other

    def n_shared(self, tokens: Sequence[int]) -> int:
        from ..context.reading.prompt import n_common

        return 0 if self._guessing is None else n_common(tokens, self._guessing.context.tokens)

    def read_some(self, context: Context, n_tokens: int) -> bool:
        guessing, tokens = self._guessing_for(context.n_ctx), context.tokens
        if not guessing.can_follow(tokens):
            return True
        guessing.drafter = None
        n = guessing.context.cut_to_shared(tokens)
        guessing.context.prefill(tokens[n : n + n_tokens])
        return n + n_tokens >= len(tokens)

    def stop_at(self, flag: int) -> None:
        if self._guessing is not None:
            self._guessing.context.stop_at(flag)

    def _check(self, file: GGUFFile) -> None:
        if file is not self._checked:
            from .vocabulary import check_vocabulary

            check_vocabulary(self.model.file, file)
            self._checked = file
            self._lengths = Lengths(self.model.file.n_bytes / file.n_bytes)

    def start(self, context: Context, sampler: SamplerState) -> ModelDrafter:
        from .guessing import ModelDrafter  # NumPy: not wanted where options are only parsed

        self.prepare(context)
        guessing = self._guessing_for(context.n_ctx)
        drafter = ModelDrafter(guessing, self._lengths, context.model, sampler)
        drafter.read(context.tokens)
        return drafter

    def _guessing_for(self, n_ctx: int) -> GuessingContext:
        """What guesses, with room for so many tokens."""
        from .guessing import GuessingContext

        size = self.size_for(n_ctx)
        if self._guessing is None or self._guessing.context.n_ctx < size:
            if n_ctx > size:
                name = one_line(self.model.file.path.name)
                self.model.tell(
                    f"the draft {name} guesses up to token {size:,}, the most it was trained on"
                )
            self._guessing = GuessingContext(
                self.model.context(size),
                self.model.config.n_vocab,
                self.max_tokens,
                self.min_probability,
            )
        return self._guessing


def check_options(max_tokens: int, min_probability: float) -> None:
    """Raises `DraftError` for an option of `DraftModel` out of its range."""
    checked_option("max_tokens", max_tokens)
    checked_option("min_probability", min_probability)
