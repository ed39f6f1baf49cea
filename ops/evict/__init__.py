"""Slots of a KV cache whose tokens give way: who takes whose slot, and what queries then see.

    stage.put(k, v)              new tokens, in the types of the cache
    choose_farthest | _oldest    the slot that each of them takes, in each KV head
    leaving_attention            for a chunk: each query over what is left for it
    settle                       the tokens move into their slots

Imported on first use; contexts that keep every token need nothing of this.
"""

from .api import (
    Stage,
    choose_farthest,
    choose_oldest,
    leaving_attention,
    set_positions,
    settle,
    sign_tokens,
)
from .simhash import SimHash
from .warm import warm

__all__ = [
    "SimHash",
    "Stage",
    "choose_farthest",
    "choose_oldest",
    "leaving_attention",
    "set_positions",
    "settle",
    "sign_tokens",
    "warm",
]
