"""An engine for each file of tests that needs no other settings."""

from collections.abc import Iterator

import pytest

from .live import Live, live, start_of


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(start_of(tmp_path_factory.mktemp("cache"))) as running:
        yield running
