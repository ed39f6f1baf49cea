"""`kvarn eval`: what a model recalls from long contexts, and how much of it each method loses.

Contexts are read once and saved as packs; every method answers the same questions about them.
"""

from .arms import Arm
from .errors import EvalError
from .plan import Plan
from .report import render
from .rows import Row
from .run import evaluate, take_free

__all__ = ["Arm", "EvalError", "Plan", "Row", "evaluate", "render", "take_free"]
