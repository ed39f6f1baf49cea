"""All attend methods: a new one is a file of its own and one line here."""
# ruff: noqa: PLC0414 - a name imported as itself is exported

from __future__ import annotations

from ..methods import registered
from .auto import Auto as Auto
from .base import Attend
from .full import Full as Full
from .hash import Hash as Hash
from .magicpig import MagicPig as MagicPig
from .topk import TopK as TopK

ATTENDS: dict[str, type[Attend]] = registered(vars(), Attend)
