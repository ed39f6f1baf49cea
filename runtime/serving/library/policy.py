"""How a prompt is read that begins with what was read before.

A request that says how gets just that: what it begins with was read so as well, and so is the rest.
Where it says nothing, the rest is read as `kvarn run --pack` reads a question, if what was read
before is to it what a pack is to a question: a pack that the request names, or a long beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ...context.planning.plan import question_prefill
from ...prefill import BlocksPrefill, Exact, Prefill, SparsePrefill
from ...store import Ram
from .entry import KVKey

if TYPE_CHECKING:
    from ...context.planning.request import ContextRequest
    from ...model import Model
    from .entry import Entry
    from .tree import Match

LONG = SparsePrefill().from_
"""Tokens that a beginning has at least to be like a pack: sparse reading starts there."""
REST_SHARE = 4
"""The rest of a prompt is like a question if it has at most this part of the beginning's tokens. A
longer one is a text of its own, as where the reading of a text was cut off."""
REPEATED = 2
"""So few tokens are read as the beginning was: a prompt that is asked again has the same answer."""


class Prefix(NamedTuple):
    """What a prompt can begin with. kv_key, prefill: of a context that goes on from there."""

    match: Match[Entry]
    kv_key: KVKey
    prefill: Prefill


@dataclass(frozen=True)
class ReadingPolicy:
    """How the prompt of a request may be read.

    anew: how tokens were read that it can begin with, and those of a prompt that begins with none;
    after: the same, followed by tokens read by `question`. is_pack: all follows a pack.
    """

    anew: KVKey
    prefill: Prefill
    after: KVKey
    question: Prefill
    is_pack: bool

    def choose(self, anew: Match[Entry], after: Match[Entry], n_tokens: int) -> Prefix:
        """The better beginning of a prompt of `n_tokens`. anew, after: the longest in each way."""
        n = max(anew.n_tokens, after.n_tokens)
        is_question = after.n_tokens > anew.n_tokens or REST_SHARE * (n_tokens - n) <= n
        is_repeated = anew.n_tokens == n and n_tokens - n <= REPEATED
        if self.is_pack or (n >= LONG and is_question and not is_repeated):
            longer = after if after.n_tokens == n else anew
            return Prefix(longer, self.after, self.question)
        return Prefix(anew, self.anew, self.prefill)

    def memory_prefill(self, n_tokens: int) -> Prefill:
        """How a context in memory reads: first a prompt of `n_tokens`, then questions."""
        if self.is_pack or not isinstance(self.question, SparsePrefill) or self.anew == self.after:
            return self.prefill
        return replace(self.question, from_=max(self.question.from_, n_tokens))

    def least_memory_prefix(self, n_tokens: int) -> int:
        """Tokens of a prompt with which a context in memory begins at least, if the rest is to be
        read as a question there."""
        if self.is_pack or self.anew == self.after or n_tokens <= LONG:
            return 0
        return n_tokens * REST_SHARE // (REST_SHARE + 1)


def policy_of(
    model: Model, request: ContextRequest, n_ctx: int, pack: KVKey | None = None
) -> ReadingPolicy | None:
    """The policy of a request, which follows a pack that was read as `pack`; None if it shares
    nothing: it evicts, reads in blocks, or has a store of its own.

    A pack of other types or other factors is of no use: its text is read again.
    """
    info, asked = model.info, request.prefill
    if not isinstance(request.store, Ram) or request.keep.evicts(n_ctx):
        return None
    config, types = info.config, request.store.types()
    long_rope = config.rope_tensors == "longrope" and n_ctx > config.n_ctx_orig
    if pack is not None and (pack.k, pack.v, pack.long_rope) != (*types, long_rope):
        pack = None

    def way(prefill: Prefill) -> KVKey:
        return KVKey(*types, (prefill.resolved(info).facts(info),), long_rope)

    if asked is not None and pack is None:
        if isinstance(asked, BlocksPrefill):
            return None
        return ReadingPolicy(way(asked), asked, way(asked), asked, False)
    question = question_prefill(model, request, n_ctx) if asked is None else asked.following()
    anew = pack or way(Exact())
    after = anew.followed_by(question.resolved(info).facts(info))
    return ReadingPolicy(anew, Exact(), after, question, pack is not None)
