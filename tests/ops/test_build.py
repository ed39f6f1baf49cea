"""Building ahead compiles what it names and says so; wrong names are refused in words."""

import pytest

from kvarn.jit.cached import jit
from kvarn.ops import attention, build, evict, linear, pointwise, select
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
    names = [name for name, _ in build.steps([], [], ["f16"], ["64:8:2"])]
    assert names[1:] == ["sparse attention 64:8:2 over f16", "eviction 64:8:2 over f16"]


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


@jit
def _kernel(x):
    return x + 1


@pytest.fixture
def asked(monkeypatch):
    """What the rooms are asked to compile; the norms' room compiles one small kernel."""
    calls = []
    monkeypatch.setattr(pointwise, "warm", lambda: _kernel(1))
    monkeypatch.setattr(linear, "warm", calls.append)
    for room in (attention, select, evict):
        monkeypatch.setattr(room, "warm", lambda *given: calls.append(given))
    return calls


def test_command_compiles_what_was_asked_and_reports(asked, capsys):
    arguments = ["--types", "Q8_0,F32", "--heads", "64:8:2", "--kv", "q8_0", "--methods", "64:2:1"]
    assert build.main(arguments) == 0
    layout = attention.TileLayout(64, "q8_0", "q8_0")
    assert asked == [["Q8_0"], ["F32"], (layout, 8, 2), (layout, 2, 1), (layout, 2, 1)]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("[1/6] norms, rope, activations: ")
    assert lines[1] == "[2/6] Q8_0 weights: in the cache"
    assert build.main(arguments) == 0
    again = capsys.readouterr().out.splitlines()
    assert again[0].endswith("in the cache")
    assert lines[-1].rsplit(" ", 1)[1] == again[-1].rsplit(" ", 1)[1]  # the same folder


def test_command_refuses_in_one_line(capsys):
    assert build.main(["--types", "Q9"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("kvarn: ") and said.count("\n") == 1
