"""The state of one constrained answer: which tokens may come next."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np

from ...tokenizer import Tokenizer
from ..candidates import Candidates, Floats
from ..errors import SamplingError
from .constraint import Constraint
from .grammar import grammar_of, refused
from .triggers import MaskKey, TriggerWatch
from .vocabulary import control_tokens, vocabulary_of

_MOST_MASKS = 512
"""Of one grammar; 16 KB each for 128K tokens."""
# One thread compiles, so that a vocabulary or grammar that two answers wait for is made once.
_compiler = ThreadPoolExecutor(1, thread_name_prefix="kvarn-constraints")


class Matcher:
    """Masks for the tokens of one answer; compiled in the background, waited for at the first."""

    def __init__(self, constraint: Constraint, tokenizer: Tokenizer) -> None:
        self._constraint = constraint
        self._tokenizer, self._ends = tokenizer, tokenizer.eog_ids
        self._future: Future[Any] = _compiler.submit(_compiled, constraint, tokenizer)
        self._matcher: Any = None
        self._trigger: TriggerWatch
        self._masks: dict[MaskKey, bytes] = {}
        """Those of one grammar, which its answers share."""
        self.is_complete = False
        """Whether the answer is a match that no token can extend."""

    def copy(self) -> Matcher:
        """The same state, which goes on by itself."""
        other = copy(self)
        other._matcher, other._trigger = self._started().deep_copy(), copy(self._trigger)
        return other

    def allowed(self, logits: Floats) -> Candidates:
        """The tokens that may come next, of logits (V,).

        Costs llguidance's mask and a pass over V: 0.35 ms for 128K tokens. Masks of text before a
        trigger are kept. Raises `SamplingError` where the grammar became too complex.
        """
        bits = np.frombuffer(self._mask(), np.uint8)
        n = min(8 * bits.size, logits.size)
        ids = np.flatnonzero(np.unpackbits(bits, count=n, bitorder="little").view(np.bool_))
        self._check()
        if not ids.size:
            raise SamplingError("sampling: no token of the vocabulary goes on with the constraint")
        return Candidates(ids, logits.take(ids))

    def accept(self, token: int) -> None:
        """Go on after a token of the answer."""
        matcher = self._started()
        self._trigger.push(token)
        if self.is_complete or token in self._ends:
            self.is_complete = True
            return
        if not matcher.consume_token(token):
            self._check()
        self.is_complete = matcher.is_stopped()

    def _mask(self) -> bytes:
        """The bits of tokens that may come next."""
        matcher, key = self._started(), self._trigger.key
        known = None if key is None else self._masks.get(key)
        if known is not None:
            return known
        mask: bytes = matcher.compute_bitmask()
        if key is not None and len(self._masks) < _MOST_MASKS and not matcher.is_error():
            self._masks[key] = mask
        return mask

    def _started(self) -> Any:
        if self._matcher is None:
            compiled, self._masks = self._future.result()
            self._matcher = compiled.deep_copy()
            constraint = self._constraint
            awaited = constraint.trigger or ((constraint.after,) if constraint.after else ())
            control = control_tokens(self._tokenizer)
            self._trigger = TriggerWatch(awaited, self._tokenizer, control)
        return self._matcher

    def _check(self) -> None:
        if self._matcher.is_error():
            raise refused(self._constraint.kind, self._matcher.get_error())


@lru_cache(maxsize=32)
def _compiled(constraint: Constraint, tokenizer: Tokenizer) -> tuple[Any, dict[MaskKey, bytes]]:
    """The matcher at the start of an answer, and masks that are known. 1 ms for a small schema."""
    from llguidance import LLMatcher

    grammar = grammar_of(
        constraint.kind,
        constraint.value,
        constraint.trigger,
        constraint.after,
        control_tokens(tokenizer),
    )
    matcher = LLMatcher(vocabulary_of(tokenizer), grammar, log_level=0)
    if matcher.is_error():
        raise refused(constraint.kind, matcher.get_error())
    return matcher, {}
