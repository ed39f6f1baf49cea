"""`kvarn ask --ray`: lines that are refused before Ray is started."""

from __future__ import annotations

import sys

import pytest

from kvarn.system.extras import how_to_install

from ..pack_runner import Kvarn


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("mill", "--ray", "local"), 2, "--ray asks the packs of a folder: kvarn ask --packs FOL"),
        (("--packs", "x", "--ray-workers", "2"), 2, "--ray-workers has no effect without --ray"),
        (("--packs", "x", "--ray", "local"), 1, f"needs the package ray: {how_to_install('ray')}"),
    ],
)
def test_wrong_lines_are_refused(
    run: Kvarn, words: tuple[str, ...], code: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # not installed
    ended, out, err = run("ask", *words, "Who?")
    assert (ended, out, err.count("\n")) == (code, "", 1) and told in err
