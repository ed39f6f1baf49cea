"""Which kept tokens a query reads: the third of the three axes."""

from .base import Attend, LayerView
from .full import Full

ATTENDS: dict[str, type[Attend]] = {"full": Full}

__all__ = ["ATTENDS", "Attend", "Full", "LayerView"]
