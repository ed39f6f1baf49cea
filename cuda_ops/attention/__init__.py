"""Attention over KV tiles on a GPU: one token over all, a window or lists; chunks of prompts."""

from .token import TokenScratch, gathered_attention, token_attention

__all__ = ["TokenScratch", "gathered_attention", "token_attention"]
