"""The table of what choosing takes: single choices beside rows, whose lists are compared."""

import pytest

from lab.choosing import __main__ as front
from lab.choosing.subjects import SUBJECTS, Signatures

FEW = ["--depths", "3000", "--singles", "3", "--rounds", "1", "-k", "32"]


def test_a_line_for_each_index(capsys) -> None:
    assert front.main([*FEW, "--rows", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[2].strip() for line in lines[2:]] == [f"`{name}`" for name in SUBJECTS]
    assert all(line.count("|") == 7 for line in lines)


def test_rows_that_choose_other_tokens_end_it(monkeypatch) -> None:
    def swapped(self: Signatures, rows: range) -> None:
        choose(self, rows)
        self._many[: len(rows)] ^= 1

    choose = Signatures.rows
    monkeypatch.setattr(Signatures, "rows", swapped)
    with pytest.raises(SystemExit, match="row 0 chose other tokens"):
        front.main([*FEW, "--rows", "5", "--index", "hash"])
