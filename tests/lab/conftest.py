"""The laboratory's methods are registered in these tests, and in no others of the process."""
# ruff: noqa: PLC0414 - fixtures of other rooms

import pytest

import lab.methods
from kvarn.runtime.attend import ATTENDS

from ..ops.conftest import make_cache as make_cache
from ..ops.conftest import queries as queries
from ..runtime.conftest import model as model

ADDED = {name: ATTENDS.pop(name) for name in [*ATTENDS] if ATTENDS[name].__module__[:4] == "lab."}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {method.__name__ for method in ADDED.values()} == {*lab.methods.__all__}
    for name, method in ADDED.items():
        monkeypatch.setitem(ATTENDS, name, method)
