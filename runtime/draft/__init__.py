"""Guesses what comes next, so that several tokens are read in one pass over the weights.

A draft changes what a token costs, never which token comes: every guess is verified.
"""

from .base import Draft as Draft
from .base import Drafter as Drafter
from .base import DraftError as DraftError
from .ngram import Ngram as Ngram

DRAFTS: dict[str, type[Draft]] = {"ngram": Ngram}
