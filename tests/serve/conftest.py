"""One server over a fake engine for each module."""

from collections.abc import Iterator

import httpx
import pytest

from .fake_engine import FakeEngine
from .live import serving


@pytest.fixture(scope="module")
def shared_engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def address(shared_engine: FakeEngine) -> Iterator[str]:
    """Where the server listens."""
    with serving(shared_engine) as address:
        yield address


@pytest.fixture
def engine(shared_engine: FakeEngine) -> FakeEngine:
    """The engine, which has forgotten what other tests did."""
    vars(shared_engine).update(vars(FakeEngine()))
    return shared_engine


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=30) as client:
        yield client
