"""Runs commands about packs on the tiny model."""

from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.runtime.model import Model

TEXT = "The mill stood by the river, and the wheel turned all day. " * 30


class Kvarn:
    """Runs commands on the tiny model: exit code, stdout, stderr."""

    def __init__(self, model: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.model, self.text, self._capsys = ["-m", str(model)], str(text), capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def build(self, name: str, *arguments: str) -> str:
        code, out, err = self("pack", "build", *self.model, "-f", self.text, "-o", name, *arguments)
        assert (code, out) == (0, ""), err
        return err


def ids_of(model: Model, text: str) -> list[int]:
    return model.tokenizer.encode(text, bos=model.tokenizer.add_bos)
