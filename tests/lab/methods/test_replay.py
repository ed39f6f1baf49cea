"""Recorded selections, replayed: the same tokens are read and the same bits come out."""

from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.cli import main
from kvarn.runtime.attend import AttendError
from kvarn.runtime.attend.selections import Source, selection_file
from kvarn.runtime.model import Model
from lab.methods import Replay

from ...runtime.attend.test_selections import METHOD, decoded


def test_a_replay_gives_the_recorded_runs_bits(tiny: Model, tmp_path: Path) -> None:
    path = tmp_path / "selections"
    logits = decoded(tiny, METHOD, path)
    np.testing.assert_array_equal(decoded(tiny, Replay(str(path))), logits)
    assert not np.array_equal(decoded(tiny, kvarn.Full()), logits)


def test_what_cannot_be_replayed_says_so(tiny: Model, tmp_path: Path) -> None:
    path = tmp_path / "selections"
    with pytest.raises(AttendError, match="No such file"):
        tiny.context(8, Replay(str(path)))
    with pytest.raises(AttendError, match="give --selections FILE"):
        tiny.context(8, Replay())
    with selection_file(path, Source(2, 2, "", "", ""), []):
        pass
    with pytest.raises(AttendError, match="is empty"):
        tiny.context(8, Replay(str(path)))
    with selection_file(path, Source(5, 2, "", "", ""), []):
        pass
    with pytest.raises(AttendError, match="5 layers with 2 KV heads, this model has 2 with 2"):
        tiny.context(8, Replay(str(path)))
    decoded(tiny, METHOD, path)
    with pytest.raises(AttendError, match="of a context of 301 tokens cannot be replayed in one"):
        decoded(tiny, Replay(str(path)), n=200)


def test_a_step_without_tokens_is_told(tiny: Model, tmp_path: Path) -> None:
    path, lists = tmp_path / "selections", np.zeros((2, 1), np.uint32)
    with selection_file(path, Source(tiny.config.n_layers, 2, "", "", ""), []) as writer:
        for layer in range(tiny.config.n_layers):
            writer.add(layer, 301, lists, np.array([1, 0]))
    with pytest.raises(AttendError, match="layer 0 names no token of KV head 1"):
        decoded(tiny, Replay(str(path)))


def test_a_command_line_has_it(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "selections")
    deep = ["bench", "-m", str(tiny_path), "-d", "100", "-n", "2", "-r", "1", "-o", "json"]
    method = ["--method", "hash", "--budget", "16", "--sink", "4", "--window", "8"]
    assert main([*deep, "-p", "0", *method, "--record-selections", path]) == 0
    capsys.readouterr()
    assert main([*deep, "-p", "0", "--method", "replay", "--selections", path]) == 0
    assert '"method": "replay selections=' in capsys.readouterr().out
