"""What evicted contexts hold of what answers attend to."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvarn.evals.quality import Arm, Plan
from kvarn.evals.quality.folder import ContextFolder
from kvarn.evals.quality.reading import TokenSample, tokenize_sample
from kvarn.evals.tasks import Plain
from kvarn.runtime.model import Model
from lab.results.lost import AttendedTokens, LossStudy, attended

PLAN = Plan(("kv",), (900,), (Arm(),), Plain(), "plain", 2, 2)


@pytest.fixture
def read(tiny: Model, tmp_path: Path) -> TokenSample:
    return tokenize_sample(tiny, ContextFolder(tmp_path / "one"), PLAN, PLAN.cells()[0], 0)


def test_the_mass_of_the_positions_of_each_kv_head() -> None:
    """And the error of the softmax over these alone; four heads, two KV heads, three tokens."""
    weights = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.0, 0.0, 1.0], [0.3, 0.3, 0.4]])
    values = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    exact = np.stack([row @ values[:, h // 2] for h, row in enumerate(weights)])
    seen = AttendedTokens([weights], [exact.astype(np.float32)], values)
    kept = np.array([[0, 2], [1, 0]], np.uint32)
    covered, error = seen.left(0, kept)
    assert covered == pytest.approx((0.75 + 0.8 + 0.0 + 0.6) / 4)
    outs = [
        (0.5 * values[0, 0] + 0.25 * values[2, 0]) / 0.75,
        (0.1 * values[0, 0] + 0.7 * values[2, 0]) / 0.8,
        np.zeros(2),  # nothing that it attends to is left
        (0.3 * values[0, 1] + 0.3 * values[1, 1]) / 0.6,
    ]
    errors = [np.linalg.norm(o - e) / np.linalg.norm(e) for o, e in zip(outs, exact)]
    assert error == pytest.approx(np.mean(errors), rel=1e-5)
    assert seen.left(0, np.arange(3)[None])[1] < 1e-6
    assert seen.left(0, seen.most(0, 1))[0] == pytest.approx((0.5 + 0.7 + 1.0 + 0.4) / 4)


def test_weights_are_the_softmax_over_all_tokens_before(tiny: Model, read: TokenSample) -> None:
    """They sum to 1, and reach up to the token itself."""
    for number, found in enumerate(attended(tiny, read)):
        n = len(read.ids) + len(read.question_ids[number])
        for seen in found.values():
            for step, weights in enumerate(seen.weights):
                assert weights.shape == (tiny.config.n_heads, n + step + 1)
                np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)


def test_what_streaming_holds_is_the_mass_of_its_ends(tiny: Model, tmp_path: Path) -> None:
    """The first 4 and the newest: by the weights alone, without a context that evicts."""
    lost = LossStudy(tiny, PLAN, tmp_path, ("streaming", "random"), "50%")
    cells = list(lost.cells())
    assert [(cell["context"], cell["arm"].replace("full keep ", "")) for cell in cells] == [
        (context, f"{keep} 50%")
        for context in (0, 1)
        for keep in ("streaming", "random", "exact")
        for _ in range(2)
    ]
    for other, exact in ((0, 4), (1, 5), (2, 4), (3, 5)):
        assert cells[other]["layer"] == cells[exact]["layer"]
        assert cells[other]["covered"][0] < cells[exact]["covered"][0] < 1
    folder = ContextFolder(tmp_path / PLAN.cells()[0].key(PLAN, 0, tiny))
    read = replace(tokenize_sample(tiny, folder, PLAN, PLAN.cells()[0], 0), asked="inside")
    budget = -(-read.n_ctx // 2)
    for cell in cells[:2]:
        masses = []
        for found in attended(tiny, read):
            for weights in found[cell["layer"]].weights:
                masses.append(weights[:, :4].sum(1) + weights[:, -(budget - 4) :].sum(1))
        assert cell["covered"][0] == pytest.approx(float(np.mean(masses)), rel=1e-5)
        assert 0.3 < cell["covered"][0] < 0.7


def test_figures_are_kept(tiny: Model, tmp_path: Path) -> None:
    lost = LossStudy(tiny, PLAN, tmp_path, ("l2norm", "nacl:proxies=10%"), "50%")
    cells = list(lost.cells())
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/lost-*.json")}
    assert len(files) == 2 and json.dumps(cells) == json.dumps(list(lost.cells(shared=True)))
    assert list(replace(lost, budget="30%").cells()) != cells
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/lost-*.json")}
    assert files.items() <= kept.items() and len(kept) == 4
