"""Predictions of contexts that evict from a shared reading, beside `kvarn perplexity`'s."""

from pathlib import Path

import numpy as np
import pytest

from kvarn.evals.prediction import compare_methods, passages_of
from kvarn.runtime.attend import Full
from kvarn.runtime.axes import KEEP_AXIS
from kvarn.runtime.bench import Observer
from kvarn.runtime.model import Model
from lab.evicting.__main__ import KEEPS, main, measured

N_READ, N_PREDICTED = 700, 6


def _text() -> str:
    words = "the mill stood by a river and its miller knew every stone of it".split()
    return " ".join(np.random.default_rng(8).choice(words, 900))


def test_a_shared_reading_gives_what_each_method_reads_itself(tiny: Model, tmp_path: Path) -> None:
    passages = passages_of(tiny, {"text": _text()}, N_READ, N_PREDICTED)
    keeps = {
        f"{name} {share}": KEEP_AXIS.parsed(name, {"budget": share})
        for name in KEEPS.split(",") for share in ("20%", "50%")
    }  # fmt: skip
    shared = measured(tiny, passages[0], keeps)
    _, *results = compare_methods(
        tiny, passages, {"full": Full()}, tmp_path, ("f16", "f16"), None, Observer(), keeps
    )
    for result in results:
        losses, kept = shared[result.method]
        assert kept == result.read
        assert losses.nats == pytest.approx(result.texts[0].nats, abs=1e-5), result.method
        assert losses.kl == pytest.approx(result.texts[0].kl, abs=1e-5)
        assert losses.agrees == result.texts[0].agrees


def test_texts_are_measured_once_and_shown_together(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (text := tmp_path / "one.txt").write_text(_text())
    (other := tmp_path / "two.txt").write_text(_text()[40:])
    line = ["-m", str(tiny_path), "--out", str(tmp_path / "out"), "--ctx", "300", "--decode", "3",
            "--keep", "tova,streaming", "-f"]  # fmt: skip
    assert main([*line, str(text)]) == 0
    capsys.readouterr()
    assert main([*line, str(text), str(other)]) == 0
    captured = capsys.readouterr()
    rows = [row.split("  ")[0] for row in captured.out.splitlines()]
    assert rows == ["method", "tova 20%", "tova 50%", "streaming 20%", "streaming 50%"]
    assert captured.err.count("3 tokens predicted by 4") == 1
    assert len((tmp_path / "out").read_text().splitlines()) == 2
    assert main([*line, str(text), "/none"]) == 1
