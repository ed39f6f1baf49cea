"""The study of draws over packs: its estimates against formulas, and its command."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lab.results.estimators import Blocks, capped, drawn_probability
from lab.results.heads import KeyHead, balanced, cosines, head_of

from ...conftest import ROOT

RNG = np.random.default_rng(8)
KEYS, VALUES = RNG.standard_normal((2, 2100, 32)).astype(np.float32)
Q = RNG.standard_normal(32).astype(np.float32)
HEAD = head_of(Q, KEYS, VALUES, KeyHead(KEYS, VALUES, [(6, 30)], 1), 0.5)


@pytest.mark.parametrize("m", [1, 7, 250.5, 2099])
def test_capped_probabilities_are_proportional_below_one(m: float) -> None:
    a = np.exp(3 * RNG.standard_normal(2100))
    u = capped(a, m)
    assert u.max() <= 1
    assert u.sum() == pytest.approx(m, rel=1e-9)
    below = u < 1 - 1e-12
    np.testing.assert_allclose(u[below] / a[below], (u / a)[below].mean(), rtol=1e-9)
    assert a[~below].min(initial=np.inf) >= a[below].max(initial=0)


def test_more_draws_than_tokens_are_all_of_them() -> None:
    a = np.array([0.0, 2.0, 5.0])
    assert capped(a, 2).tolist() == capped(a, 9).tolist() == [0, 1, 1]


def test_blocks_part_full_segments_and_have_their_means() -> None:
    blocks = Blocks(KEYS, VALUES)
    assert np.array_equal(np.bincount(blocks.of[:2048]), [32] * 64)
    assert (blocks.of[2048:] == -1).all()
    for block in (0, 31, 32, 63):
        assert len(set(np.flatnonzero(blocks.of == block) // 1024)) == 1
        np.testing.assert_allclose(blocks.keys[block], KEYS[blocks.of == block].mean(0), atol=1e-6)
    inside = sum(KEYS[blocks.of == b].var(0).sum() for b in range(64)) / 64
    assert inside < 0.9 * KEYS.var(0).sum()  # keys of a block are alike


def test_a_balanced_basis_keeps_products_and_widens_angles() -> None:
    """Where keys differ most along dimensions to which queries are no nearer than to others."""
    keys = KEYS * np.linspace(0.1, 9, 32, dtype=np.float32)
    of_keys, of_queries = balanced(keys)
    np.testing.assert_allclose(keys @ of_keys @ (Q @ of_queries), keys @ Q, rtol=1e-3, atol=1e-3)
    assert cosines(Q @ of_queries, keys @ of_keys).std() > 1.05 * cosines(Q, keys).std()


def test_all_tokens_are_full_attention() -> None:
    everything = np.ones(2100, np.bool_)
    scores = 0.5 * KEYS.astype(float) @ Q
    weights = np.exp(scores - scores.max())
    exact = weights @ VALUES / weights.sum()
    np.testing.assert_allclose(HEAD.exact, exact, rtol=1e-4)  # scores are of float32
    assert HEAD.error(HEAD.ratio(everything)) < 1e-9
    assert HEAD.error(HEAD.with_means(everything)) < 1e-9
    assert HEAD.top(40).sum() == 4 + 64 + 40


@pytest.mark.parametrize("estimate", ["ratio", "with_means"])
def test_draws_by_known_probabilities_come_near_on_average(estimate: str) -> None:
    """Numerator and denominator are unbiased, and their ratio nearly where many are drawn."""
    head = head_of(Q, KEYS, VALUES, KeyHead(KEYS, VALUES, [(6, 30)], 1), 0.1)
    u = np.where(head.always(), 1.0, np.maximum(drawn_probability(head.cosine, 4, 12), 0.1))
    tokens = [RNG.random(2100) < u for _ in range(400)]
    outs = np.array([getattr(head, estimate)(one, 1 / u) for one in tokens])
    one = np.mean([head.error(out) for out in outs])
    assert head.error(outs.mean(0)) < one / 5


def test_the_command_prints_both_tables(tiny_path: Path, tmp_path: Path) -> None:
    text, packs, rows = tmp_path / "book.txt", tmp_path / "packs", tmp_path / "rows.jsonl"
    text.write_text("A line of prose, and one more. The third one ends here.\n" * 900)
    model, ctx = str(tiny_path), ["--ctx", "2500"]
    build = ["perplexity", "-m", model, "-f", str(text), *ctx, "--decode", "2", "--method", "full"]

    def run(module: str, *words: str) -> str:
        command = [sys.executable, "-m", module, *words]
        done = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
        return done.stdout

    run("kvarn", *build, "--work", str(packs))
    options = ["--model", model, "--packs", str(packs), *ctx, "--text", str(text), "--decode", "9"]
    options += ["--every", "4", "--tables", "4x20,5x10", "--seeds", "2", "--rows", str(rows)]
    printed = run("lab.results.draws", *options)
    figures = [json.loads(line) for line in rows.read_text().splitlines()]
    heads = {(row["layer"], row["head"], row["tables"]) for row in figures}
    assert len(figures) == 2 * len(heads)
    for row in figures:
        assert 0 < row["m"] < 1
        assert 0 <= row["reach"] <= 1
        assert row["group"] >= 1
    first, second = printed.split("\n\n")
    assert len(first.splitlines()) == 2 + len({(one[0], one[2]) for one in heads})
    assert "| m draws optimal |" in second
