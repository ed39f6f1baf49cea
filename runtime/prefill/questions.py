"""How a question about an existing context is read, where its user does not say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import Prefill
from .exact import Exact
from .sparse import SparsePrefill

if TYPE_CHECKING:
    from ..attend import Attend
    from ..keep import Keep


def for_questions(attend: Attend, keep: Keep, n_ctx: int) -> Prefill:
    """Sparsely, where generated tokens choose what they read, too, and nothing is evicted; else
    exactly: a question of 20 tokens would wait for 20 readings of the whole context."""
    return SparsePrefill() if attend.selects and not keep.evicts(n_ctx) else Exact()
