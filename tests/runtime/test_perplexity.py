"""Perplexity against its formula, and against llama.cpp's figures for trained models."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.perplexity import perplexity
from kvarn.runtime.prefill import BlocksPrefill, Prefill, SparsePrefill
from kvarn.runtime.store import Ram
from kvarn.system.errors import KvarnError

TEXT = "The mill stood by the river, and the miller knew every stone of it. " * 12


def test_it_is_the_formula(tiny: Model) -> None:
    n_ctx = 32
    ids = tiny.tokenizer.encode(TEXT, bos=True)
    losses: list[float] = []
    for start in range(0, len(ids) - n_ctx + 1, n_ctx):
        piece = ids[start : start + n_ctx]
        context = tiny.context(n_ctx)
        for i, token in enumerate([tiny.tokenizer.bos_id, *piece[1:]]):
            logits = context.prefill([token]).astype(np.float64)
            if n_ctx // 2 <= i < n_ctx - 1:
                losses.append(np.log(np.exp(logits).sum()) - logits[piece[i + 1]])
    *_, result = perplexity(tiny, TEXT, n_ctx, None, Ram())
    assert result.n_tokens == len(losses)
    assert result.n_chunks == result.all_chunks == len(ids) // n_ctx
    assert result.value == pytest.approx(np.exp(np.mean(losses)), rel=1e-3)
    expected_error = np.exp(np.mean(losses)) * np.std(losses) / np.sqrt(len(losses) - 1)
    assert result.error == pytest.approx(expected_error, rel=1e-2)


def test_pieces_can_be_read_in_part(tiny: Model) -> None:
    text, n_ctx = TEXT * 40, 2048

    def value(prefill: Prefill | None) -> float:
        (result,) = perplexity(tiny, text, n_ctx, 1, Ram(), prefill)
        return result.value

    exact = value(None)
    assert value(SparsePrefill(k=n_ctx, from_=0)) == exact
    assert value(BlocksPrefill(n_ctx)) == exact
    for prefill in (SparsePrefill(k=16, from_=1024), BlocksPrefill(1024)):
        other = value(prefill)
        assert other != exact and other == pytest.approx(exact, rel=0.1)


def test_fewer_pieces_on_request(tiny: Model) -> None:
    results = list(perplexity(tiny, TEXT, 32, 2, Ram()))
    assert [r.n_chunks for r in results] == [1, 2]


@pytest.mark.parametrize(("text", "n_ctx", "message"), [("short", 64, "needs at least 128"),
                                                        (TEXT, 3, "at least 4")])  # fmt: skip
def test_too_little_is_refused(tiny: Model, text: str, n_ctx: int, message: str) -> None:
    with pytest.raises(KvarnError, match=message):
        list(perplexity(tiny, text, n_ctx, None, Ram()))


GOLDEN = json.loads((Path(__file__).parent / "golden" / "perplexity.json").read_text())


@pytest.mark.data
@pytest.mark.parametrize("name", GOLDEN["perplexity"])
def test_trained_models_have_llama_cpps_perplexity(data_dir: Path, name: str) -> None:
    text = (data_dir / GOLDEN["text"]).read_bytes()[: GOLDEN["n_bytes"]]
    model = load(data_dir / name)
    *_, result = perplexity(model, text, GOLDEN["n_ctx"][name], None, Ram())
    # Measured: 0.01%; the bound leaves room for f16 rounding of the KV cache in both.
    assert result.value == pytest.approx(GOLDEN["perplexity"][name], rel=0.002)
