"""Guesses what comes next, so that several tokens are read in one pass over the weights.

A draft changes what a token costs, never which token comes: every guess is verified.
"""

from .base import Draft, Drafter, DraftError
from .ngram import Ngram

DRAFTS: dict[str, type[Draft]] = {"ngram": Ngram}

__all__ = ["DRAFTS", "Draft", "DraftError", "Drafter", "Ngram"]
