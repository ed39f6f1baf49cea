"""All stores: a new one is a file of its own and one line here."""
# ruff: noqa: PLC0414 - a name imported as itself is exported

from __future__ import annotations

from ..methods import registered
from .disk import Disk as Disk
from .method import Store
from .ram.factory import Ram as Ram

STORES: dict[str, type[Store]] = registered(vars(), Store)
