"""Slots of a KV cache whose tokens give way: SimHash signatures, and the token farthest from them.

Imported on first use; nothing here is needed by contexts that keep every token.
"""

from .api import EvictScratch, SimHash, replace_farthest, set_positions, sign_tokens

__all__ = ["EvictScratch", "SimHash", "replace_farthest", "set_positions", "sign_tokens"]
