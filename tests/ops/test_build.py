"""Building ahead compiles what it names and says so; wrong names are refused in words."""

import pytest

from kvarn.ops import build
from kvarn.ops.errors import OpsError


def test_steps_name_everything():
    names = [
        name for name, _ in build.steps(["Q8_0", "F32"], ["64:8:2", "96:3:1"], ["f16", "q8_0"])
    ]
    assert names == [
        *("norms, rope, activations", "Q8_0 weights", "F32 weights"),
        *("attention 64:8:2 over f16", "attention 64:8:2 over q8_0"),
        *("attention 96:3:1 over f16", "attention 96:3:1 over q8_0"),
    ]


@pytest.mark.parametrize("types", [["Q8"], ["q8_0"], [""]])
def test_unknown_type(types):
    with pytest.raises(OpsError, match=f"type {types[0]}: no such type"):
        build.steps(types, [], [])


@pytest.mark.parametrize(
    "heads", ["64", "64:8", "64:8:3", "64:0:0", "a:8:8", "64:8:2:1", "64:8:-2"]
)
def test_wrong_heads(heads):
    with pytest.raises(OpsError, match="expected HEAD_DIM:HEADS:KV_HEADS"):
        build.steps([], [heads], [])


def test_command_compiles_and_reports(capsys):
    # The norms alone: weights and attention take longer and are no different here.
    assert build.main(["--types", "", "--heads", ""]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[1/1] norms, rope, activations: ")
    assert build.main(["--types", "", "--heads", ""]) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[0].endswith("in the cache")
    assert lines[1].rsplit(" ", 1)[1] == again[1].rsplit(" ", 1)[1]  # the same folder


def test_command_refuses_in_one_line(capsys):
    assert build.main(["--types", "Q9"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("kvarn: ") and said.count("\n") == 1
