"""What choosing among packs takes: the table, and that facts are found in the packs made for it."""

from pathlib import Path

import pytest

from lab.asking import main


def test_the_right_pack_comes_first_among_those_that_are_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [str(tmp_path), "--packs", "3", "--characters", "900", "--questions", "2"]
    for _ in range(2):  # packs that are there are not made again
        assert main(line) == 0
        *_, row = capsys.readouterr().out.splitlines()
        assert row.startswith("| 3 | ") and row.endswith(" | 2 of 2 |"), row
    assert len([path for path in tmp_path.iterdir() if path.name[0] != "."]) == 3
