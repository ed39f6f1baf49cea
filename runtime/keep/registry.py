"""All keep methods: a new one is a file of its own and one line here."""
# ruff: noqa: PLC0414 - a name imported as itself is exported

from __future__ import annotations

from ..methods import registered
from .base import Keep
from .everything import KeepAll as KeepAll
from .hashevict import HashEvict as HashEvict
from .streaming import Streaming as Streaming

KEEPS: dict[str, type[Keep]] = registered(vars(), Keep)
