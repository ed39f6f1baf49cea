"""Attention over KV tiles on a GPU: one token over all, a window or lists; chunks of prompts."""

from .prefill import ChunkScratch as ChunkScratch
from .prefill import chunk_attention as chunk_attention
from .token import TokenScratch as TokenScratch
from .token import gathered_attention as gathered_attention
from .token import token_attention as token_attention
