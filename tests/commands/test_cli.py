"""The front door: streams, exit codes, one line per error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands import COMMANDS
from kvarn.runtime.loading.load import load
from kvarn.system.errors import KvarnError

from ..programs import printed


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([command, "--help"])
        assert stopped.value.code == 0
        assert command in capsys.readouterr().out


LOADED = """
import json, sys
for commands in ([], *([name] for name in json.loads(sys.argv[1]))):
    for name in [name for name in sys.modules if name.partition(".")[0] == "kvarn"]:
        del sys.modules[name]
    from kvarn.cli import build_parser
    build_parser(*commands)
    print(json.dumps([commands, list(sys.modules)]))
"""
"""The modules that are loaded after the parser was built with the options of each command."""


def test_a_commands_options_import_no_kernel_and_no_other_command() -> None:
    done = printed(LOADED, json.dumps(list(COMMANDS)), timeout=120)
    modules = {name: f"kvarn.commands.{module}" for name, (module, _) in COMMANDS.items()}
    (no_command, loaded), *others = map(json.loads, done.splitlines())
    assert no_command == [] and not {"numba", "numpy", "tokenizers", "jinja2"} & set(loaded)
    rooms = {name.split(".")[1] for name in loaded if name.startswith("kvarn.")}
    assert rooms == {"cli", "commands", "system"} and not set(modules.values()) & set(loaded)
    assert [command for (command,), _ in others] == list(COMMANDS)
    kernels = {"numba", "kvarn.models.passes.transformer", "tokenizers", "jinja2", "torch"}
    for (command,), loaded in others:
        assert not kernels & set(loaded), command
        assert set(modules.values()) & set(loaded) == {modules[command]}


def test_without_a_command_it_shows_first_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "kvarn run -p" in captured.out and "kvarn --help" in captured.out


def error_line(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("kvarn: ")
    return lines[0]


def test_prompts_that_a_model_cannot_read(
    tiny_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["-m", str(tiny_path)]
    long = ["--ctx", "8", "-p", "far too long a prompt for so small a context"]
    assert "use a larger context (--ctx)" in error_line(capsys, "run", *model, *long)
    with pytest.raises(KvarnError, match=r"use a larger context \(n_ctx\)"):
        load(tiny_path).context(8).prefill(long[-1])
    assert "no chat template" in error_line(capsys, "run", *model, "--instruct", "-p", "x")


def test_generated_text_alone_goes_to_stdout(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = tmp_path / "stats.json"
    arguments = ["run", "-m", str(tiny_path), "-p", "one two", "-n", "6", "--temp", "0"]
    assert main([*arguments, "--stats", "--stats-json", str(stats)]) == 0
    first = capsys.readouterr()
    assert "tok/s" in first.err
    figures = json.loads(stats.read_text())
    assert figures["prefilled_tokens"] > 0
    assert figures["decoded_tokens"] == 5
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("one two")
    assert main(["run", "-m", str(tiny_path), "-f", str(prompt), "-n", "6", "--temp", "0"]) == 0
    assert capsys.readouterr().out == first.out != ""


def test_methods_run_and_say_what_they_read(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = tmp_path / "stats.json"
    run = ["run", "-m", str(tiny_path), "-n", "4", "--temp", "0", "--stats-json", str(stats)]
    options = ["--budget", "8", "--sink", "2", "--window", "4", "--probe", "1"]
    for method in (["topk", "--index", "flat"], ["hash", "--bits", "64"]):
        assert main([*run, "-p", "x" * 40, "--method", *method, *options]) == 0
        said = capsys.readouterr().err
        assert ("no learned encoders" in said) == (method[0] == "hash")
        layer = json.loads(stats.read_text())["layers"][0]
        assert layer["steps"] == 3
        assert 0 < layer["covered_mass"] < 1


def test_bench_and_perplexity_print_json(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = ["bench", "-m", str(tiny_path), "-p", "4", "-n", "2", "-r", "1", "-o", "json"]
    assert main(bench) == 0
    assert [row["n_prompt"] for row in json.loads(capsys.readouterr().out)] == [4, 0]
    deep = ["-d", "1,1100", "--fill", "40", "--method", "hash", "--budget", "3%"]
    assert main([*bench, *deep]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["n_depth"], row["filled"]) for row in rows] == [(1, False)] * 2 + [
        (1100, True)
    ] * 2
    assert {row["method"] for row in rows} == {"hash budget=3%"}
    text = tmp_path / "text.txt"
    text.write_text("the mill by the river " * 10)
    wanted = ["perplexity", "-m", str(tiny_path), "-f", str(text), "-c", "16", "--json"]
    assert main(wanted) == 0
    assert json.loads(capsys.readouterr().out)["n_ctx"] == 16


def test_selections_are_recorded(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = ["--record-selections", str(tmp_path / "selections")]
    method = ["--method", "hash", "--budget", "16", "--sink", "4", "--window", "8"]
    deep = ["bench", "-m", str(tiny_path), "-d", "100", "-n", "2", "-r", "1", "-o", "json"]
    assert main([*deep, "-p", "0", *method, *record]) == 0
    capsys.readouterr()
    assert "takes one measurement" in error_line(capsys, *deep, *method, *record, code=2)
    text = "the mill by the river " * 9
    run = ["run", "-m", str(tiny_path), "-p", text, "-n", "2", "--temp", "0"]
    assert "nothing to record" in error_line(capsys, *run, *record, code=2)
    assert "nothing to record" in error_line(capsys, *deep, *record, code=2)
    assert main([*run, *method, *record]) == 0
    assert (tmp_path / "selections").stat().st_size > 100


def test_a_closed_pipe_ends_quietly(tiny_path: Path) -> None:
    command = f'"{sys.executable}" -m kvarn run -m "{tiny_path}" -p x -n 400 --temp 0 | head -c 1'
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_full_disk_under_stdout_is_one_line(tiny_path: Path) -> None:
    if not os.access("/dev/full", os.W_OK):
        pytest.skip("no /dev/full on this system")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvarn", "run", "-m", tiny_path, "-p", "x", "-n", "2"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "kvarn: standard output: No space left on device\n"
