"""Guesses the next tokens, so that one pass over the weights reads several.

A draft changes the cost of a token, never the token: every guess is verified.
"""

from .ngram import Draft as Draft
from .ngram import Drafter as Drafter
from .ngram import DraftError as DraftError
from .ngram import Ngram as Ngram

DRAFTS: dict[str, type[Draft]] = {"ngram": Ngram}
