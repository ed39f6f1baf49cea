"""`kvarn build`: missing kernels are found first, so that none is compiled twice."""

from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands.machine import build
from kvarn.runtime.rehearsal import Rehearsal
from kvarn.system.terminal import show

from ...models.tiny_text_encoders import TinyEncoder, write


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What compiled, and the types of its tasks."""
    ran: list[tuple[str, list[str]]] = []
    for name in ("compile_missing", "compile_all"):

        def run(tasks: list[object], say: object, name: str = name) -> None:
            assert say is show
            ran.append((name, [type(task).__name__ for task in tasks]))

        monkeypatch.setattr(build, name, run)
    return ran


@pytest.mark.parametrize("options", [[], ["--method", "topk"], ["--kv-type", "q8_0"]])
def test_missing_kernels_are_found_before_any_is_compiled(
    tiny_path: Path, ran: list[tuple[str, list[str]]], options: list[str]
) -> None:
    assert main(["build", "-m", str(tiny_path), *options]) == 0
    (first, rehearsed), then = ran
    assert first == "compile_missing" and then == ("compile_all", rehearsed)
    assert set(rehearsed) == {Rehearsal.__name__}


def test_a_text_encoder_has_one_task(tmp_path: Path, ran: list[tuple[str, list[str]]]) -> None:
    write(tmp_path / "encoder.gguf", TinyEncoder())
    assert main(["build", "-m", str(tmp_path / "encoder.gguf")]) == 0
    assert ran == [("compile_all", ["TextRehearsal"])]
