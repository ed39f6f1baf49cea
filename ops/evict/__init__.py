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

from .api import SlotColumns as SlotColumns
from .api import choose_farthest as choose_farthest
from .api import choose_oldest as choose_oldest
from .api import outside as outside
from .api import set_positions as set_positions
from .api import sign_tokens as sign_tokens
from .api import staged_attention as staged_attention
from .api import write_staged as write_staged
from .arguments import Protected as Protected
from .arguments import Signatures as Signatures
from .scores import add_attention as add_attention
from .scores import key_norms as key_norms
from .scores import move_slots as move_slots
from .signer import Signer as Signer
from .staging import Staging as Staging
