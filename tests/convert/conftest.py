"""A hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import hub_server
from .hub_server import Hub


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub on the loopback, empty."""
    with hub_server.serve() as served:
        yield served
