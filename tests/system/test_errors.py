"""Every error of kvarn goes through a pipe between processes."""

import copy
import importlib
import inspect
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.serving.protocol import Refused
from kvarn.runtime.store.disk.errors import PackDamaged
from kvarn.system.errors import KvarnError
from kvarn.system.values import WrongValue

ARGUMENTS = {
    "str": "text",
    "int": 7,
    "object": object(),
    "bytes": b"text",
    "Path": Path("a.gguf"),
    "str | PathLike[str]": "a.gguf",
    "Kind": "busy",
    "Exception": ValueError("text"),
    "Refused": Refused(7, "busy", "text"),
    "dict[int, KvarnError]": {7: PackDamaged(Path("a"), "text")},
}
NOT_THE_PACKAGE = {"tests", "lab", "examples", "cuda_ops", "setup", "build"}


def all_errors() -> list[type[KvarnError]]:
    for module in pkgutil.walk_packages(kvarn.__path__, "kvarn."):
        if module.name.split(".")[1] not in NOT_THE_PACKAGE:
            try:
                importlib.import_module(module.name)
            except ImportError:  # what it needs is an extra that is not installed
                continue
    found, classes = [KvarnError], [KvarnError]
    while classes:
        classes = [one for above in classes for one in above.__subclasses__()]
        found += [one for one in classes if one.__module__.startswith("kvarn.")]
    assert len(found) > 40
    return found


def example(kind: type[KvarnError]) -> KvarnError:
    if not inspect.isfunction(kind.__init__):
        return kind("what was found, and what was expected")
    parameters = inspect.signature(kind).parameters.values()
    required = [one for one in parameters if one.default is one.empty]
    return kind(*(ARGUMENTS[str(one.annotation)] for one in required))


def test_errors_are_the_same_after_pickling_and_copying() -> None:
    for kind in all_errors():
        error = example(kind)
        error.add_note("a note")
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(other) is kind
            assert (str(other), other.args) == (str(error), error.args), kind
            assert vars(other).keys() == vars(error).keys(), kind


def fail(name: str) -> None:
    raise PackDamaged(Path(name), "its log ends early")


def test_a_pool_of_processes_goes_on_after_an_error() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        for name in ("a", "b"):
            with pytest.raises(PackDamaged, match=f"{name}.*its log ends early"):
                pool.submit(fail, name).result(timeout=60)


def test_a_wrong_value_names_the_option_that_is_named_last() -> None:
    error = WrongValue("1 to 3", 4, "--first")
    assert str(error.for_option("--second")) == "--second: expected 1 to 3, found 4"
    assert str(error) == "--first: expected 1 to 3, found 4"
