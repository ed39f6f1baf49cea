"""What rows might read, judged: by hand where nothing or all is read, in order where it must be."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvarn.runtime.model import Model
from kvarn.runtime.prefill import SparsePrefill
from kvarn.runtime.prefill.attention import ROWS
from lab.prompts.__main__ import main, table
from lab.prompts.choices import CHOICES, ChoiceFigures, judge
from lab.prompts.watch import Block, watch

from ...runtime.conftest import model
from ...runtime.reading import ids_of

__all__ = ["model"]


@pytest.fixture(scope="module")
def blocks(model: Model) -> list[Block]:
    found: list[Block] = []
    watch(model, ids_of(model, 2100), SparsePrefill(k=40, from_=1024), [1024, 1536], found.append)
    return found


def test_all_layers_and_rows_are_seen(blocks: list[Block], model: Model) -> None:
    assert [(b.layer.index, b.start) for b in blocks] == [
        (0, 1024),
        (1, 1024),
        (0, 1536),
        (1, 1536),
    ]
    heads, head_dim = model.config.n_heads, model.config.head_dim
    for block in blocks:
        assert block.q.shape == block.out.shape == (ROWS, heads, head_dim)
        assert len(block.keys) == len(block.values) == block.start + ROWS
        for row in block.lists:
            for tokens in row:
                assert 40 <= len(tokens) <= 80
                assert (
                    block.candidates.first <= tokens.min() and tokens.max() < block.candidates.stop
                )


def test_watching_reads_exactly(model: Model, blocks: list[Block]) -> None:
    with model.context(1700) as context:
        context.prefill(ids_of(model, 1664))
        want = context.logits.copy()
        store = context.store
    seen: list[Block] = []
    watch(model, ids_of(model, 1664), SparsePrefill(k=40, from_=1024), [1536], seen.append)
    np.testing.assert_array_equal(seen[0].keys, blocks[2].keys)
    assert want.shape and store.n_layers == 2


def test_choices_read_as_much_and_the_best_is_best(blocks: list[Block]) -> None:
    for block in blocks:
        judged = judge(block)
        assert {*judged} == {*CHOICES}
        own, best = judged["own"], judged["best"]
        assert best.n_tokens == own.n_tokens
        assert judged["union"].n_tokens == judged["summit"].n_tokens
        assert abs(judged["union"].n_tokens - own.n_tokens) <= 1
        assert own.covered > judged["union"].covered
        assert own.n_tokens <= judged["blocks"].n_tokens + 1 < own.n_tokens + 130
        assert all(0 < one.covered < 1 and one.error > 0 for one in judged.values())
        assert best.covered >= max(own.covered, judged["summit"].covered)
        assert judged["tail"].error < own.error
        assert judged["tail"].covered == own.covered


def test_rows_that_list_all_are_exact(blocks: list[Block]) -> None:
    first, last = blocks[0].candidates
    everything = [[np.arange(first, last, dtype=np.uint32)] * 2 for _ in range(ROWS)]
    judged = judge(replace(blocks[0], lists=everything))
    for name in ("own", "best", "blocks", "union", "summit"):
        assert judged[name].covered == pytest.approx(1) and judged[name].error < 1e-5


def test_the_table_and_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = table({3: dict.fromkeys(CHOICES, ChoiceFigures(512, 0.9, 0.125))}).splitlines()
    assert lines[0] == "| choice | tokens read | covered | output error | layer 3 |"
    assert lines[2] == "| each row its own, by the index | 512 | 90.0% | 0.125 | 0.125 |"
    text = tmp_path / "short.txt"
    text.write_text("The mill stood by the river.")
    assert main(["-f", str(text)]) == 1
    assert "tokens, fewer than 16,384: give a longer text" in capsys.readouterr().err
    assert main(["-f", str(text), "-n", "4", "--from", "0"]) == 1
    assert "no chunk lies between token 0 and 4" in capsys.readouterr().err
