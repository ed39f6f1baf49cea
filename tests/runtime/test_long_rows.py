"""Rows that are keys and values at once, of the sizes of DeepSeek V2 and V3: what methods choose,
evict and read of them is what NumPy's formulas say of the rows as stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.ops.reference.attention import gathered_reference, read_kv
from kvarn.ops.reference.select import (
    largest_reference,
    nearest_reference,
    network_reference,
    pack_bits,
    reranked_reference,
)
from kvarn.runtime.attend import Attend
from kvarn.runtime.attend.encoders import SimHash
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.keep import EvictingKeep
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import BlocksPrefill, SparsePrefill
from kvarn.runtime.prefill.blocks import BlockPrompts
from kvarn.runtime.store.disk.checking.verify import verify

from ..models import tiny_cases, tiny_models
from .attend.spy import Spy
from .attend.test_magicpig import METHOD as MAGIC_PIG
from .attend.test_magicpig import attended
from .prefill.sparse_reading import Spy as PromptSpy
from .prefill.sparse_reading import chosen_by_formula
from .reading import ids_of, read
from .test_scored import BUDGET, expected, watching

N = 1100
EACH = {"budget": 40, "sink": 4, "window": 16, "budget_unit": "query-head"}
FLAT, HASH, RERANKED = (
    kvarn.TopK(index="flat", **EACH),
    kvarn.Hash(**EACH, rerank=1),
    kvarn.Hash(**EACH, rerank=3),
)
SKETCHED = kvarn.TopK(**EACH)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Two layers of eight heads, whose rows are 512 compressed numbers and 64 that rotate."""
    (case,) = (case for case in tiny_cases.CASES if case.name == "deepseek2-576")
    tiny_models.write(path := tmp_path_factory.mktemp("rows") / "model.gguf", case, 1)
    return load(path)


def rows_of(layer, stop: int) -> tuple[np.ndarray, np.ndarray]:
    return read_kv(layer.store.segments(layer.index), layer.store.layout, 1, 0, stop)


def chosen(method: Attend, model: Model, layer: int, q, keys, stop: int) -> np.ndarray:
    """The tokens that the only KV head attends."""
    k, among = int(str(method.budget)), (method.sink, stop - method.window, stop)
    scores = q[0] @ keys[:, 0].T
    if isinstance(method, kvarn.TopK):
        return largest_reference(scores, 1, among, k, SEED)[0]
    network = SimHash(32, SEED).networks(model.config, layer).queries[0]
    asking, stored = (
        pack_bits(network_reference(x, network.weights, network.widths))[None]
        for x in (q[0], keys[:, 0])
    )
    if method.rerank > 1:
        wanted = k, method.rerank * k, SEED
        return reranked_reference(asking, stored, 32, scores, among, wanted)[0]
    return nearest_reference(asking, stored, 32, among, k, SEED)[0]


def check_listed(layer, q, keys, values, tokens: np.ndarray, out) -> None:
    want = gathered_reference(
        q, keys, values, tokens[None].astype(np.uint32), np.array([len(tokens)]),
        softmax=layer.softmax,
    )  # fmt: skip
    np.testing.assert_allclose(out, want, atol=1e-5 * np.abs(values).max())


@pytest.mark.parametrize(
    ("method", "kind"),
    [(FLAT, "f16"), (HASH, "q8_0"), (RERANKED, "f16")],
    ids=["flat", "nearest", "reranked"],
)
def test_a_step_reads_what_the_formula_chooses(rows: Model, method: Attend, kind: str) -> None:
    spy = Spy(method)
    read(rows, spy, N, 1, store=kvarn.Ram(kind, kind))
    for index, (layer, q, stop, out) in spy.calls.items():
        keys, values = rows_of(layer, stop)
        np.testing.assert_array_equal(keys, values)
        tokens = chosen(method, rows, index, q, keys, stop)
        assert spy.inner.reads[index].attended_tokens == len(tokens) < stop
        check_listed(layer, q, keys, values, tokens, out)


def test_sketches_find_what_all_products_find(rows: Model) -> None:
    """Most of the softmax; the sinks and the newest tokens hold a small part of it."""
    covered = []
    for method, budget in ((FLAT, 100), (SKETCHED, 100), (FLAT, 1)):
        context, _ = read(rows, replace(method, probe=1, budget=budget), 2 * N, 4)
        covered.append([layer["covered_mass"] for layer in context.stats.as_dict()["layers"]])
    for flat, near, few in zip(*covered, strict=True):
        assert few < 0.5 * flat < 0.85 * flat < near < flat + 1e-6
    print(covered)


@pytest.mark.parametrize("method", [FLAT, RERANKED, SKETCHED], ids=lambda method: method.name)
def test_a_budget_of_the_whole_context_gives_the_bits_of_full(rows: Model, method: Attend) -> None:
    _, want = read(rows, kvarn.Full(), N, 3)
    _, got = read(rows, replace(method, budget=N), N, 3)
    np.testing.assert_array_equal(got, want)


def test_a_draw_is_the_formula(rows: Model) -> None:
    spy = Spy(MAGIC_PIG)
    read(rows, spy, N, 1)
    for index, (layer, q, stop, out) in spy.calls.items():
        keys, values = rows_of(layer, stop)
        for h in range(rows.config.n_heads):
            want, count, _ = attended(
                q[0, h], keys[:, 0], values[:, 0], index, layer.config.attention_scale, 1024
            )
            assert 20 < count < stop
            np.testing.assert_allclose(out[0, h], want, atol=1e-5 * np.abs(want).max())


def test_rows_of_a_prompt_read_what_the_formula_chooses(
    rows: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = PromptSpy(monkeypatch)
    with rows.context(
        1700, prefill=SparsePrefill(k=40, index="hash", from_=1024, tail="none")
    ) as c:
        c.prefill(ids_of(rows, 1600))
        sparse = [call for call in spy.calls if call[2] >= 1024]
        assert len(sparse) == 4  # chunks of 512 and 64, of which the last layer computes 8 rows
        for layer, q, start, out in sparse:
            for row in (0, len(q) - 1):
                keys, values = rows_of(layer, start + row + 1)
                (tokens,) = chosen_by_formula(rows, layer.index, q[row], keys, start + row, 40)
                assert len(tokens) < len(keys)
                check_listed(layer, q[row][None], keys, values, tokens, out[row][None])


def test_sketches_and_means_of_a_sparse_prompt_stay_near_exact_reading(rows: Model) -> None:
    """Half of what is between is chosen, the rest counts by its means."""
    ids, logits = ids_of(rows, 1600), []
    for prefill in (None, SparsePrefill(k=300, index="sketch", from_=1024), SparsePrefill(
        k=16, index="sketch", from_=1024, tail="none"
    )):  # fmt: skip
        with rows.context(1700, prefill=prefill) as context:
            logits.append(context.prefill(ids).copy())
    near, far = (np.abs(x - logits[0]).max() / logits[0].std() for x in logits[1:])
    assert 0 < near < 0.5 * far


def test_rows_of_blocks_read_the_first_tokens_and_their_block(
    rows: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = PromptSpy(monkeypatch, BlockPrompts)
    with rows.context(1700, prefill=BlocksPrefill(512)) as context:
        context.prefill(ids_of(rows, 1600))
        for layer, q, start, out in spy.calls:
            for row in (0, len(q) - 1):
                position = start + row
                keys, values = rows_of(layer, position + 1)
                token = np.arange(position + 1)
                seen = (token < 128) | (token >= position // 512 * 512) | (position >= 1536)
                check_listed(layer, q[row][None], keys, values, token[seen], out[row][None])
    assert {start for _, _, start, _ in spy.calls} >= {0, 512, 1024, 1536}


@pytest.mark.parametrize(
    "keep",
    [kvarn.NaCl(BUDGET), kvarn.H2O(BUDGET), kvarn.TOVA(BUDGET), kvarn.SnapKV(BUDGET),
     kvarn.L2Norm(BUDGET), kvarn.KeepRandom(BUDGET, seed=2)],
    ids=lambda keep: keep.name,
)  # fmt: skip
def test_what_stays_is_what_numpy_keeps(rows: Model, keep, monkeypatch: pytest.MonkeyPatch) -> None:
    n, context = 300, rows.context(2048, keep=keep, store=kvarn.Ram("q4_0", "q4_0"))
    with watching(monkeypatch) as watch:
        context.prefill(ids_of(rows, n))
        context.decode(5)
    for number, layer in enumerate(rows.config.kv_layers):
        keys, q = watch.keys[number], watch.query(number, n)
        (want,) = expected(keep, q, keys, BUDGET, number, n, layer.attention_scale)
        assert context.kept_positions(number).tolist() == [[*want, n]]
        kept, _ = read_kv(context.store.segments(number), context.store.layout, 1, 0, BUDGET)
        np.testing.assert_array_equal(kept[:, 0], keys[want, 0])


@pytest.mark.parametrize("keep", [kvarn.Streaming(40), kvarn.HashEvict(40)], ids=lambda x: x.name)
def test_slots_that_are_replaced_go_on(rows: Model, keep: EvictingKeep) -> None:
    """Up to the last free slot with the bits of all; then cut prompts with those of whole ones."""
    ids, n = ids_of(rows, 600), 600
    plain = rows.context(1024).prefill(ids)
    np.testing.assert_array_equal(
        rows.context(1024, keep=replace(keep, budget=n)).prefill(ids), plain
    )
    whole, cut = (rows.context(1024, keep=keep) for _ in range(2))
    cut.prefill(ids[:512])
    np.testing.assert_array_equal(cut.prefill(ids[512:]), whole.prefill(ids))
    np.testing.assert_array_equal(cut.kept_positions(1), whole.kept_positions(1))
    assert {0, 1, 2, 3, *range(590, 600)} <= set(whole.kept_positions(0)[0].tolist())
    assert not np.array_equal(whole.logits, plain)


def test_a_pack_keeps_the_index(rows: Model, tmp_path: Path) -> None:
    """Sketches and means; a pack that was opened again gives the bits of memory."""
    method, ids = kvarn.TopK(budget=64, sink=4, window=16, tail="means"), ids_of(rows, 2100)
    with rows.context(2200, method) as context:
        context.prefill(ids)
        expected = context.decode(5).copy()
    with rows.context(2200, method, store=kvarn.Disk(tmp_path / "pack")) as context:
        context.prefill(ids[:-1])
    assert verify(tmp_path / "pack") == []
    with rows.context(2200, method, store=kvarn.Disk(tmp_path / "pack")) as context:
        context.prefill(ids[-1:])
        np.testing.assert_array_equal(context.decode(5), expected)
