"""A published model's vocabulary: byte-level BPE or SentencePiece, as its folder has it."""

from .vocabulary import read_vocabulary

__all__ = ["read_vocabulary"]
