"""What an answer attends to. Oracles: the softmax in float64 over the keys as stored, and facts
that were put into a text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.ops.arrays import F64
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.lens.weights import (
    MOST_ROWS,
    SINK,
    RecordingAttention,
    RecordingFull,
    Weights,
    excess_shares,
    result_of,
    weighing,
)
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.packs.asking import ask
from kvarn.runtime.prefill import SparsePrefill

from ...models import tiny_cases, tiny_models


def weights_of(*given: Any) -> F64:
    return result_of(weighing(*given))


def ids(model: Model, n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(1, model.config.n_vocab, n).tolist()


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model whose rows are keys and values at once."""
    (case,) = (case for case in tiny_cases.CASES if case.name == "deepseek2-576")
    tiny_models.write(path := tmp_path_factory.mktemp("rows") / "model.gguf", case, 1)
    return load(path)


@pytest.mark.parametrize("name", ["model", "long_rows"])
@pytest.mark.parametrize("n_follow", [1, 5, MOST_ROWS + 3])
def test_sums_are_those_of_the_softmax_rows(
    name: str, n_follow: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the rows after the document alone, and not more than `MOST_ROWS`."""
    model: Model = request.getfixturevalue(name)
    n_kv_heads, n, asked = model.config.n_kv_heads, 90, []
    inner = RecordingAttention.attend_prompt

    def spy(self, layer, q, start, out) -> None:
        inner(self, layer, q, start, out)
        asked.append((layer, q.copy(), start))

    monkeypatch.setattr(RecordingAttention, "attend_prompt", spy)
    weights, want = Weights(n), np.zeros(n)
    with model.context(512, RecordingFull(weights)) as context:
        context.prefill(ids(model, n + n_follow, 1))
        for layer, q, start in asked:
            store = layer.store
            segments = store.segments(layer.index)
            keys, _ = read_kv(segments, store.layout, n_kv_heads, 0, start + len(q))
            for row in range(max(n, start), min(n + MOST_ROWS, start + len(q))):
                for head in range(q.shape[1]):
                    seen = keys[: row + 1, head * n_kv_heads // q.shape[1]].astype(np.float64)
                    scores = seen @ q[row - start, head] * layer.config.attention_scale
                    mass = np.exp(scores - scores.max())
                    want += (mass / mass.sum())[:n]
    np.testing.assert_allclose(weights.sums, want, rtol=1e-5)
    assert want.sum() > 0


def test_weighing_reads_as_full_does(model: Model) -> None:
    logits = []
    for attend in (kvarn.Full(), RecordingFull(Weights(20))):
        with model.context(256, attend) as context:
            logits.append(context.prefill(ids(model, 60, 2)).copy())
    np.testing.assert_array_equal(*logits)


def test_what_exceeds_usual_shares_counts_less_where_they_are_large() -> None:
    """As Pearson's residuals of counts; in float64."""
    asked, usual = np.array([0.3, 0.25, 0.1, 0.35]), np.array([0.2, 0.15, 0.2, 0.45])
    excess = np.array([0.1 / np.sqrt(0.2), 0.1 / np.sqrt(0.15), 0, 0])
    np.testing.assert_allclose(excess_shares(asked, usual), excess / excess.sum(), rtol=0.01)
    # A token that a neutral question does not read at all weighs no more than its share allows.
    some = excess_shares(np.array([0.001, 0.299, 0.7]), np.array([0.0, 0.1, 0.9]))
    assert some[0] < some[1] and some[2] == 0
    assert not excess_shares(usual, usual).any()


def test_what_a_neutral_question_reads_does_not_count(model: Model, tmp_path: Path) -> None:
    pack, n, document = tmp_path / "pack", 200, ids(model, 200, 3)
    kvarn.build_pack(model, pack, document)
    asked = ContextRequest(store=kvarn.Disk(pack, read_only=True))
    follow = ids(model, 9, 4)
    assert not weights_of(model.open, asked, document, follow, follow).any()
    neutral = ids(model, 9, 5)
    weights = weights_of(model.open, asked, document, follow, neutral)
    assert weights.shape == (n,) and (weights >= 0).all() and not weights[:SINK].any()
    assert weights.sum() == pytest.approx(1)
    # In slices, of a document that is read for it.
    steps, n_steps = weighing(model.open, ContextRequest(n_ctx=256), document, follow, neutral), 0
    next(steps)
    in_slices = None
    while in_slices is None:
        n_steps += 1
        try:
            steps.send(64)
        except StopIteration as end:
            in_slices = end.value
    np.testing.assert_allclose(in_slices, weights, rtol=1e-4, atol=1e-7)
    assert n_steps > 4


def test_the_first_tokens_never_count(model: Model) -> None:
    """Whichever question attends more to them."""
    document, asked = ids(model, 100, 3), ContextRequest(n_ctx=128)
    questions = ids(model, 9, 4), ids(model, 9, 5)
    for follow, neutral in (questions, questions[::-1]):
        weights = weights_of(model.open, asked, document, follow, neutral)
        assert weights.any() and not weights[:SINK].any()


def test_what_the_context_has_no_room_for_is_not_weighed(model: Model) -> None:
    document, follow, neutral = (ids(model, n, n) for n in (100, 9, 8))
    short, whole = (
        weights_of(model.open, ContextRequest(n_ctx=n_ctx), document, follow[:n], neutral[:n])
        for n_ctx, n in ((104, 9), (128, 4))
    )
    np.testing.assert_array_equal(short, whole)


def test_documents_are_weighed_exactly_however_prompts_are_read(model: Model) -> None:
    document, follow, neutral = (ids(model, n, n) for n in (2500, 9, 8))
    weights = []
    for prefill in (None, SparsePrefill(k=64, from_=512)):
        asked = ContextRequest(n_ctx=2600, prefill=prefill)
        weights.append(weights_of(model.open, asked, document, follow, neutral))
    np.testing.assert_array_equal(*weights)


@pytest.fixture(scope="module")
def houses(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """The default model, and its pack of a text in which houses belong to trades."""
    model, pack = load(threads=1), tmp_path_factory.mktemp("packs") / "houses"
    trades = ["miller", "smith", "baker", "weaver", "cooper"] * 12
    lines = [f"House {n} belongs to the {trade}.\n" for n, trade in enumerate(trades)]
    kvarn.build_pack(model, pack, "".join(lines))
    return model, pack


def test_the_passage_is_the_one_that_is_asked_for(houses: tuple[Model, Path]) -> None:
    found = 0
    for number in (7, 23, 31, 48):
        answer = ask(*houses, f"Who lives in house {number}? House {number} belongs to", 8)
        assert 1 <= len(answer.passages) <= 3 and answer.n_tokens <= 8
        shares = [one.share for one in answer.passages]
        assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1
        found += any(f"ouse {number} belongs" in one.text for one in answer.passages)
        best = answer.passages[0]
        line = int(best.place.removeprefix("line ").replace(",", ""))
        assert f"House {line - 1}" in best.text or f"House {line - 2}" in best.text
    assert found >= 3


def test_an_answer_is_that_of_a_conversation_after_the_pack(houses: tuple[Model, Path]) -> None:
    model, pack = houses
    question = "Who lives in house 7?"
    with model.context(store=kvarn.Disk(pack, read_only=True)) as context:
        sampler = kvarn.Sampler(temp=0)
        n = len(context.tokens)
        chat = kvarn.Conversation(context, sampler=sampler, max_tokens=8, base=n)
        expected = "".join(chat.ask(question))
    answer = kvarn.ask(model, pack, question, 8)
    assert (answer.text, answer.finish) == (expected, "length")
