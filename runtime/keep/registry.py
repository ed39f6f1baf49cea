"""All keep methods: a new one is a file of its own and one line here."""
# ruff: noqa: PLC0414 - a name imported as itself is exported

from __future__ import annotations

from ..methods import registered
from .base import Keep
from .base import KeepAll as KeepAll
from .hashevict import HashEvict as HashEvict
from .scored import H2O as H2O
from .scored import TOVA as TOVA
from .scored import KeepRandom as KeepRandom
from .scored import L2Norm as L2Norm
from .scored import NaCl as NaCl
from .scored import SnapKV as SnapKV
from .streaming import Streaming as Streaming

KEEPS: dict[str, type[Keep]] = registered(vars(), Keep)
