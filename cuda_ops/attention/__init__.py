"""Attention over KV tiles on a GPU: one token over all, a window or lists; chunks of prompts."""

from .prefill import ChunkScratch, chunk_attention
from .token import TokenScratch, gathered_attention, token_attention

__all__ = [
    "ChunkScratch",
    "TokenScratch",
    "chunk_attention",
    "gathered_attention",
    "token_attention",
]
