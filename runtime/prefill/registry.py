"""All prefill methods: a new one is a file of its own and one line here."""
# ruff: noqa: PLC0414 - a name imported as itself is exported

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..methods import registered
from .base import Prefill, PrefillError
from .blocks import TO_THE_END
from .blocks import BlocksPrefill as BlocksPrefill
from .exact import Exact as Exact
from .sparse import SparsePrefill as SparsePrefill

if TYPE_CHECKING:
    from ..attend import Attend
    from ..keep import Keep
    from ..store.facts import PrefillFacts

PREFILLS: dict[str, type[Prefill]] = registered(vars(), Prefill)


def recorded(facts: PrefillFacts | None) -> Prefill:
    """The method that a pack has recorded; `PrefillError` for one that this kvarn does not have."""
    if facts is None:
        return Exact()
    if facts.mode not in (SparsePrefill.name, BlocksPrefill.name, TO_THE_END):
        raise PrefillError(f"the pack's prompts were read {facts}: this kvarn cannot go on so")
    rest = "block" if facts.mode == TO_THE_END else "sparse" if facts.index else "exact"
    blocks = partial(BlocksPrefill, windows=facts.windows or "across")
    if rest != "sparse":
        return blocks(facts.size, facts.until or None, rest)
    tail = "means" if facts.tail else "none"
    rerank = facts.rerank if facts.index == "hash" else None
    sparse = SparsePrefill(facts.k, facts.index, tail, facts.from_, rerank=rerank)
    if facts.mode == SparsePrefill.name:
        return sparse
    return blocks(facts.size, facts.until or None, rest, sparse)


def for_questions(attend: Attend, keep: Keep, n_ctx: int) -> Prefill:
    """The method that reads a question about an existing context, where its user does not say it:
    sparse, if generated tokens choose and nothing is evicted; otherwise exact.

    An exact question of 20 tokens waits for 20 readings of the whole context."""
    sparse = attend.selects and not attend.exact_prompts and not keep.evicts(n_ctx)
    return SparsePrefill() if sparse else Exact()
