"""Eviction: tokens of a full KV cache are replaced, slot by slot, by new ones.

    staging.put(k, v)            new tokens, in the types of the cache
    choose_farthest | _oldest    the slot that each of them takes, in each KV head
    outside                      the slots of the first and the last tokens
    staged_attention             for a chunk: each query over what is left for it
    write_staged                 the tokens are written into their slots

    add_attention, key_norms     what tokens are chosen by that stay, of all at once
    move_slots                   they move to the first slots

A slot is a place for a token, of the same number in every KV head. Imported on first use; contexts
that keep every token need nothing of this.
"""

from .api import (
    choose_farthest,
    choose_oldest,
    outside,
    set_positions,
    sign_tokens,
    staged_attention,
    write_staged,
)
from .arguments import Protected, Signatures
from .scores import add_attention, key_norms, move_slots
from .signer import Signer
from .staging import Staging

__all__ = [
    "Protected",
    "Signatures",
    "Signer",
    "Staging",
    "add_attention",
    "choose_farthest",
    "choose_oldest",
    "key_norms",
    "move_slots",
    "outside",
    "set_positions",
    "sign_tokens",
    "staged_attention",
    "write_staged",
]
