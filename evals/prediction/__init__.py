"""What a method loses: real texts, whose next tokens are predicted one by one under each method."""

from .compare import Passage as Passage
from .compare import compare_methods as compare_methods
from .compare import passages_of as passages_of
from .losses import MethodLosses as MethodLosses
from .references import with_references as with_references
