"""`kvarn eval`: what a model recalls from long contexts, and how much of it each method loses.

Contexts are read once and saved as packs; every method answers the same questions about them.
"""

from .arms import Arm as Arm
from .plan import EvalError as EvalError
from .plan import Plan as Plan
from .rows import Row as Row
from .rows import render as render
from .run import answer_free as answer_free
from .run import evaluate as evaluate
