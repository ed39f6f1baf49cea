"""What ways of reading lose: nothing where they read alike, and what contexts of one's own say."""

import json
from pathlib import Path

import pytest

from kvarn.evals.prediction.losses import log_softmax
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import BlocksPrefill
from lab.prompts.lost import main

from ...runtime.conftest import model

__all__ = ["model"]

TEXT = "The mill stood by the river, and the miller knew every stone of it. " * 60


def test_ways_are_compared_with_the_first(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, rows = tmp_path / "text.txt", tmp_path / "rows.json"
    text.write_text(TEXT)
    ways = "exact,blocks:1024,blocks:512"
    line = ["-m", str(model.path), "-f", str(text), "--ctx", "1300", "--predict", "4"]
    line += ["--prefill", ways, "--work", str(tmp_path / "work"), "--json", str(rows)]
    for _ in range(2):  # packs are opened again
        assert main(line) == 0
        head, _, *lines = capsys.readouterr().out.splitlines()
        assert head.startswith("| beside exact | nats ") and len(lines) == 2
    exact, alike, other = json.loads(rows.read_text())
    assert exact["nats"] == alike["nats"] == alike["kl"] == 0 and other["kl"] > 0
    assert len(list((tmp_path / "work").iterdir())) == 3
    ids = model.tokenizer.encode(TEXT, bos=model.tokenizer.add_bos)
    logs = []
    for prefill in (None, BlocksPrefill(512)):
        context = model.context(1400, prefill=prefill)
        context.prefill(ids[:1300])
        (logits,) = context.read_all_logits(ids[1300:1304])
        logs.append([log_softmax(row)[i] for row, i in zip(logits, ids[1301:1305], strict=True)])
    nats = sum(a - b for a, b in zip(*logs)) / 4
    assert other["nats"] == pytest.approx(nats, abs=1e-9)


def test_short_texts_are_refused(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("The mill.")
    assert main(["-m", str(model.path), "-f", str(tmp_path / "text.txt"), "--ctx", "900"]) == 1
    assert "use a longer text" in capsys.readouterr().err
