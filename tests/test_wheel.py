"""What pip installs: the rooms and the files that they read, and no word of the laboratory."""

import ast
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from kvarn.runtime.attend.encoders.sidecar import PUBLISHED
from kvarn.runtime.loading.default_model import default_model_path

from .conftest import ROOT


def rooms() -> tuple[str, ...]:
    """Those that setup.py names."""
    for node in ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS":
            return tuple(ast.literal_eval(node.value))
    raise AssertionError("setup.py names no rooms")


def installed() -> list[Path]:
    """The modules in the wheel."""
    files = [path for room in rooms() for path in (ROOT / room).rglob("*.py")]
    return [*files, *(path for path in ROOT.glob("*.py") if path.name != "setup.py")]


def test_the_wheel_holds_the_rooms_and_not_the_laboratory() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set(rooms()) == folders - {"lab", "tests"}


def test_the_wheel_holds_the_default_model() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folder = default_model_path().parent.relative_to(ROOT)
    patterns = project["tool"]["setuptools"]["package-data"][".".join(("kvarn", *folder.parts))]
    assert any(fnmatch(default_model_path().name, pattern) for pattern in patterns)


def test_the_wheel_holds_the_encoders_that_ship_with_kvarn() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    package, relative = PUBLISHED.parent.relative_to(ROOT), PUBLISHED.name
    patterns = project["tool"]["setuptools"]["package-data"][".".join(("kvarn", *package.parts))]
    assert any(fnmatch(f"{relative}/0123.hash.gguf", pattern) for pattern in patterns)


def test_the_wheel_holds_what_configurations_may_leave_out() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["package-data"]["kvarn.convert.hf"] == ["defaults.json"]


def test_what_is_installed_names_nothing_that_is_not() -> None:
    absent = re.compile(r"\blab[./]\w|\bRESULTS\.md|python -m (?!kvarn\b)")
    files = installed()
    assert len(files) > 500
    assert [path for path in files if absent.search(path.read_text(encoding="utf-8"))] == []
