"""A published model's vocabulary: byte-level BPE or SentencePiece, as its folder has it."""

from .vocabulary import read_vocabulary as read_vocabulary
