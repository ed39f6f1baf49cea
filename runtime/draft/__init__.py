"""Guesses the next tokens, so that one pass over the weights reads several.

A draft changes the cost of a token, never the token: every guess is verified.
"""

from .base import Draft as Draft
from .base import Drafter as Drafter
from .base import DraftError as DraftError
from .model import DraftModel as DraftModel
from .model import check_options as check_options
from .ngram import Ngram as Ngram
