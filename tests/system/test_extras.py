"""What messages tell to install is what the package asks for."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from kvarn.system.extras import EXTRAS, how_to_install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_hint_installs_what_the_extra_stands_for(extra: str) -> None:
    expected = [line.split(";")[0] for line in PROJECT["optional-dependencies"][extra]]
    assert shlex.split(how_to_install(extra)) == ["pip", "install", *expected]


def test_every_extra_of_users_has_a_hint() -> None:
    assert EXTRAS.keys() == PROJECT["optional-dependencies"].keys() - {"test", "lint"}


def test_nothing_tells_to_install_kvarn_by_name() -> None:
    """No package registry has it: from a checkout, pip installs `.` or `.[extra]`."""
    by_name = re.compile(r"kvarn\[|pip install[^\w\n]+kvarn\b")
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "."]
    files = [*ROOT.glob("*.*"), *(file for folder in folders for file in folder.rglob("*"))]
    texts = [file for file in files if file.suffix in (".py", ".md", ".h", ".c") and file.is_file()]
    assert len(texts) > 500
    naming = [file for file in texts if by_name.search(file.read_text(encoding="utf-8"))]
    assert naming == []
