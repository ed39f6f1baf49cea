"""Quest against its formula, and as a method that kvarn does not know."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.cli import main
from kvarn.runtime.attend import ATTENDS, AttendError
from kvarn.runtime.keep import KeepError
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import index_pack, pack_info
from kvarn.runtime.store.disk.checking.columns import ColumnSegment, column_faults
from lab.methods import Quest
from lab.methods.quest.layout import scales_offset, tile_item_bytes

from ...conftest import ROOT
from ...runtime.attend import test_indexing, test_sparse
from ...runtime.attend.test_sparse import COMMON
from ...runtime.reading import ids_of
from .tiles import highest_tiles

QUEST = Quest(**COMMON)
OPTIONS = ["--budget", "8", "--sink", "2", "--window", "4"]


def test_a_step_is_the_papers_formula(model: Model) -> None:
    def chosen(method, model, layer, q, keys, stop) -> list[np.ndarray]:
        first, last = method.sink, stop - method.window
        return highest_tiles(q, keys, keys.shape[1], first, last, stop)

    test_sparse.check_a_step(model, QUEST, chosen)


@pytest.mark.parametrize(
    "holds",
    [
        test_sparse.test_a_budget_of_the_whole_context_gives_the_bits_of_full,
        test_sparse.test_one_thread_gives_the_same_bits,
    ],
)
def test_it_is_as_kvarns_methods(model: Model, holds) -> None:
    holds(model, QUEST)


def test_a_pack_keeps_the_boxes_of_a_model_with_windows(tmp_path: Path) -> None:
    test_indexing.test_a_pack_keeps_the_index_of_a_model_with_windows(QUEST, tmp_path)


def test_what_it_cannot_do_is_told_in_words(model: Model) -> None:
    with pytest.raises(AttendError, match=r"expected a share \(more than 0% to 100%\) or a count"):
        Quest(budget="0%")
    with pytest.raises(KeepError, match=r"cannot be combined with quest .*which needs all tokens"):
        model.context(1200, QUEST, kvarn.Streaming(80))
    assert kvarn.Quest is Quest


def test_a_column_with_boxes_is_checked() -> None:
    heads = np.zeros((2, 1024 * tile_item_bytes(16)), np.uint8)
    heads[1, scales_offset(16) + 2 : scales_offset(16) + 4] = 0x80, 0x7F
    segment = ColumnSegment("quest-box8", heads, 16, 0, 1)
    assert list(column_faults(segment)) == [(1, "a scale is not finite")]
    short = segment._replace(heads=heads[:, 1024:])
    assert list(column_faults(short)) == [(0, "it has 2 bytes per token, expected 3")]


def test_a_command_line_has_it(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = tmp_path / "stats.json"
    run = ["run", "-m", str(tiny_path), "-n", "4", "--temp", "0", "--stats-json", str(stats)]
    assert main([*run, "-p", "x" * 40, "--method", "quest", "--probe", "1", *OPTIONS]) == 0
    layer = json.loads(stats.read_text())["layers"][0]
    assert layer["steps"] == 3 and 0 < layer["covered_mass"] < 1
    shown = subprocess.run(
        [sys.executable, "-m", "lab", "run", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"quest: {Quest.summary}" in " ".join(shown.stdout.split())


def test_a_pack_with_boxes_opens_without_the_method(
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """kvarn alone leaves the boxes as they are; the method itself is unknown to it, in one line."""
    path = tmp_path / "pack"
    with model.context(1200, store=kvarn.Disk(path)) as context:
        context.prefill(ids_of(model, 1100))

    def decoded() -> np.ndarray:
        with model.context(1200, store=kvarn.Disk(path, read_only=True)) as context:
            return context.decode(5).copy()

    want = decoded()
    index_pack(model, path, QUEST, 1200)
    monkeypatch.delitem(ATTENDS, "quest")
    assert "quest-box8" in pack_info(path).indexes
    np.testing.assert_array_equal(decoded(), want)
    assert main(["pack", "verify", str(path)]) == 0
    capsys.readouterr()
    ask = ["run", "-m", str(model.path), "--pack", str(path), "-p", "x", "--method", "quest"]
    with pytest.raises(SystemExit) as stopped:
        main(ask)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "--method: expected auto, full, hash, magicpig, topk" in said and "found 'quest'" in said
    assert said.count("\n") == 1
