"""Options of all methods, as Python gives them."""

from dataclasses import fields

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Attend
from kvarn.runtime.axes import REGISTRIES
from kvarn.runtime.keep import Keep
from kvarn.runtime.methods import Method
from kvarn.runtime.prefill import Prefill
from kvarn.system.errors import KvarnError

METHODS = [method for axis in (Attend, Keep, Prefill) for method in REGISTRIES[axis].values()]
COUNTS = [
    (method, one.name)
    for method in METHODS
    for one in fields(method)
    if one.type in ("int", "int | None")
]


def test_methods_have_counts() -> None:
    assert len(COUNTS) > 30 and (kvarn.TopK, "sink") in COUNTS


@pytest.mark.parametrize(("method", "name"), COUNTS)
@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), float("inf"), "x", True])
def test_what_is_no_count_is_refused(method: type[Method], name: str, value: object) -> None:
    with pytest.raises(KvarnError, match=rf"{name.rstrip('_')} is .*, expected a whole number"):
        method(**{name: value})


def test_counts_are_numbers() -> None:
    assert kvarn.TopK(sink="1K").sink == 1024  # type: ignore[arg-type]
    assert type(kvarn.TopK(sink=np.int64(8)).sink) is int  # type: ignore[arg-type]
    assert kvarn.Hash(bits=None).bits is None
    with pytest.raises(KvarnError, match="sink is None, expected a whole number"):
        kvarn.TopK(sink=None)  # type: ignore[arg-type]
