"""`kvarn learn` where it cannot begin."""

from pathlib import Path

from kvarn import cli
from kvarn.commands.models import learn


def test_without_torch_it_says_so_in_one_line(tiny_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(learn, "find_spec", lambda name: None)
    assert cli.main(["learn", str(tiny_path), "--text", str(tiny_path)]) == 1
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) == 1
    assert "needs torch" in err and "pip install 'torch>=2.6'" in err
