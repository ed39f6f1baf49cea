"""Sparse prefill: the rows choose what the formula says; short prompts have the bits of exact."""

from dataclasses import replace

import numpy as np
import pytest

import kvarn
from kvarn.jit import threads
from kvarn.ops.attention.decode import read_ahead as reading
from kvarn.ops.reference.attention import gathered_reference, read_kv
from kvarn.runtime.attend import Hash, TopK
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.engine import on_engine
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import PREFILLS, Exact, PrefillError, SparsePrefill
from kvarn.runtime.prefill.attention import SINKS, WINDOW, SparsePrompts
from kvarn.runtime.rehearsal import N_FILLED, N_READ, read_deep
from kvarn.runtime.store import Ram

from ..reading import ids_of
from .sparse_reading import SKETCH, SPARSE, N, Spy, chosen_by_formula, read_prompt, same_kv


@pytest.mark.parametrize("rerank", [1, 3])
def test_each_row_reads_what_it_chooses(
    model: Model, monkeypatch: pytest.MonkeyPatch, rerank: int
) -> None:
    spy = Spy(monkeypatch)
    read_prompt(model, replace(SPARSE, tail="none", rerank=rerank))
    sparse = [call for call in spy.calls if call[2] >= 1024]
    # The last layer computes the last 8 rows of a chunk alone.
    assert {call[2] for call in sparse} == {1024, 1528, 1536, 2040, 2048, 2552, 2560, N - 8}
    for layer, q, start, out in sparse:
        store = layer.store
        for row in {0, len(q) // 2, len(q) - 1}:
            position = start + row
            keys, values = read_kv(store.segments(layer.index), store.layout, 2, 0, position + 1)
            lists = chosen_by_formula(model, layer.index, q[row], keys, position, 40, rerank)
            assert max(map(len, lists)) < position
            room, counts = np.zeros((2, position + 1), np.uint32), np.array([*map(len, lists)])
            for j, tokens in enumerate(lists):
                room[j, : len(tokens)] = tokens
            softmax = layer.softmax
            want = gathered_reference(q[row][None], keys, values, room, counts, softmax=softmax)
            np.testing.assert_allclose(out[row][None], want, atol=2e-6)


def test_each_row_chooses_by_sketches_as_topk_does_alone(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of a row, with the centre of the tokens before its chunk: that of `best_sketched`,
    whose oracles are NumPy's."""
    from kvarn.ops.select import Lists, Range, SketchScratch, Wanted, best_sketched

    rows, inner = [], SparsePrompts._attend

    def attend(prompts, layer, q, start, between, out) -> None:
        inner(prompts, layer, q, start, between, out)
        index, config, (first, last) = prompts._index, model.config, between
        scratch = SketchScratch(config.n_heads, config.n_kv_heads, N, 80, layer.store.layout)
        lists, counts = np.zeros((2, N), np.uint32), np.zeros(2, np.int64)
        for row in {0, len(q) - 1}:
            best_sketched(
                q[row : row + 1],
                index.keys(layer),
                Range(first, last, last),
                Wanted(40, 80, SEED),
                Lists(lists, counts),
                scratch=scratch,
            )
            for j, n in enumerate(counts):
                got = prompts._lists[row, j, : prompts._counts[row, j]]
                np.testing.assert_array_equal(got, lists[j, first:n])
            rows.append(start + row)

    monkeypatch.setattr(SparsePrompts, "_attend", attend)
    read_prompt(model, SKETCH)
    assert len(set(rows)) >= 20


def test_a_window_and_sinks_are_as_the_formula_has_them() -> None:
    assert (SINKS, WINDOW) == (128, 128)


@pytest.mark.parametrize(
    "prefill", [SparsePrefill(k=16, index="hash", from_=N), SparsePrefill(k=2000, from_=0)]
)
def test_where_all_is_read_the_bits_are_those_of_exact(model: Model, prefill) -> None:
    exact, want = read_prompt(model, Exact())
    context, got = read_prompt(model, prefill)
    np.testing.assert_array_equal(got, want)
    assert same_kv(exact, context)
    assert not any(layer.steps for layer in context.stats.prompt_layers)
    sparse, other = read_prompt(model, SPARSE)
    assert not np.array_equal(other, want) and not same_kv(exact, sparse)
    assert all(layer.steps for layer in sparse.stats.prompt_layers)


@pytest.mark.parametrize(
    "sparse", [SPARSE, replace(SPARSE, rerank=1), SKETCH], ids=["hash", "nearest", "sketch"]
)
def test_cuts_and_threads_give_the_same_bits(model: Model, sparse: SparsePrefill) -> None:
    context, want = read_prompt(model, sparse)
    before = on_engine(threads.n_threads)
    for n_threads, cuts in (
        (1, (N,)),
        (2, (100, 1030, 1536, 1600, 2040, 2600, N)),
    ):
        on_engine(threads.set_threads, min(n_threads, threads.max_threads()))
        other, got = read_prompt(model, sparse, cuts)
        np.testing.assert_array_equal(got, want)
        assert same_kv(context, other)
    on_engine(threads.set_threads, before)


@pytest.mark.parametrize("attend", [None, Hash(budget=40), TopK(budget=40, index="flat")])
def test_generated_tokens_are_read_by_their_own_method(model: Model, attend) -> None:
    """After the same K and V, a step gives the bits that it gives without sparse prefill."""
    late = replace(SPARSE, from_=N)  # nothing is read sparsely before what was generated
    context, _ = read_prompt(model, late, attend=attend)
    plain, _ = read_prompt(model, Exact(), attend=attend)
    for token in ids_of(model, 8):
        np.testing.assert_array_equal(context.decode(token), plain.decode(token))
    assert [r.steps for r in context.stats.layers] == [r.steps for r in plain.stats.layers]


@pytest.mark.parametrize(
    ("sparse", "attend"),
    [(SPARSE, None), (SKETCH, None), (SKETCH, TopK(budget=2 * N))],
    ids=["hash", "sketch", "sketches that both use"],
)
def test_generated_and_forgotten_tokens_are_indexed_before_a_prompt(
    model: Model, sparse: SparsePrefill, attend
) -> None:
    """With `topk` for generated tokens, which has columns of the same names, of its own centres."""
    ids = ids_of(model, 1100 + N)
    first, other = (model.context(2 * N, attend, prefill=sparse) for _ in range(2))
    first.prefill(ids[:1500])
    first.truncate(1200)
    for context in (first, other):
        if context is other:
            context.prefill(ids[:1200])
        for token in ids[2000:2020]:
            context.decode(token)
        context.prefill(ids[1500:2600])
    np.testing.assert_array_equal(first.logits, other.logits)
    assert same_kv(first, other)


def test_what_is_asked_by_one_prompt_token(model: Model) -> None:
    """The caller says what is a prompt, not the number of rows."""
    context, _ = read_prompt(model, SPARSE)
    steps = [layer.steps for layer in context.stats.prompt_layers]
    context.decode(5)
    assert [layer.steps for layer in context.stats.prompt_layers] == steps
    context.prefill([6])
    assert [layer.steps for layer in context.stats.prompt_layers] == [n + 1 for n in steps]


def _softmax(q, keys, values, group: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights (H, S) and output (H, E) of a row q (H, E) over all keys, in float64."""
    k, v = (np.repeat(x.astype(np.float64), group, 1) for x in (keys, values))
    weights = np.exp(scale * np.einsum("he,she->hs", q.astype(np.float64), k))
    weights /= weights.sum(1, keepdims=True)
    return weights, np.einsum("hs,she->he", weights, v)


def test_the_probe_measures_what_is_left_out(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    spy, covered, errors = Spy(monkeypatch), [], []
    context, _ = read_prompt(model, replace(SPARSE, probe=512))
    for layer, q, start, out in spy.calls:
        if start < 1024 or layer.index:
            continue
        store = layer.store
        keys, values = read_kv(store.segments(0), store.layout, 2, 0, start + 1)
        weights, exact = _softmax(q[0], keys, values, 2, layer.config.attention_scale)
        lists = chosen_by_formula(model, 0, q[0], keys, start, 40)
        covered.append(np.mean([weights[h, lists[h // 2]].sum() for h in range(4)]))
        off = np.linalg.norm(out[0] - exact, axis=1)
        errors.append(np.mean(off / np.linalg.norm(exact, axis=1)))
    first, last = context.stats.as_dict()["prompt_layers"]
    assert (first["probes"], last["probes"]) == (4, 0)
    np.testing.assert_allclose(first["covered_mass"], np.mean(covered), rtol=1e-4)
    np.testing.assert_allclose(first["output_error"], np.mean(errors), rtol=1e-4)
    told = "prefill sparse k=40 index=hash from=1024 probe=512 rerank=2: attended to"
    assert told in str(context.stats)


@pytest.mark.parametrize("index", ["hash", "sketch"])
def test_a_rehearsal_probes_where_the_method_does(model: Model, index: str) -> None:
    for probe in (0, 64):
        prefill = SparsePrefill(index=index, probe=probe).shortened()
        with model.context(N_FILLED + N_READ, prefill=prefill) as context:
            read_deep(context)
            assert bool(context.stats.prompt_layers[0].probes) == bool(probe)


def test_a_rehearsal_reads_ahead_as_contexts_on_disk_do(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def read_ahead(
        lists: object, counts: object, segments: object, n_mapped: int, *_: object
    ) -> int:
        asked.append(n_mapped)
        return 0

    monkeypatch.setattr(reading, "CAN_READ_AHEAD", True)
    monkeypatch.setattr(reading, "read_ahead", read_ahead)
    prefill = SparsePrefill(index="hash").shortened()
    with model.context(N_FILLED + N_READ, prefill=prefill) as context:
        read_deep(context)
    assert asked == [0]


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_more_is_covered_by_more(model: Model, kind: str) -> None:
    covered = []
    for k in (16, 200, 700):
        prefill = SparsePrefill(k=k, from_=1024, probe=16)
        context, _ = read_prompt(model, prefill, store=Ram(kind, kind))
        first, _ = context.stats.as_dict()["prompt_layers"]
        assert first["probes"] == -(-N // 16) - 1024 // 16
        covered.append(first["covered_mass"])
    assert 0 < covered[0] < covered[1] < covered[2] < 1


def test_refusals_in_words(model: Model) -> None:
    for words, options in {
        "cannot choose 15 tokens .* expected 16 or more": {"k": 15},
        "index is 'lsh', expected one of ": {"index": "lsh"},
        "tail is 'sample', expected one of ": {"tail": "sample"},
        "sparse prefill: from is -1": {"from_": -1},
        "probe is -1": {"probe": -1},
        "rerank of sparse prefill is 0, expected 1 to 64": {"rerank": 0},
        "rerank of sparse prefill is for index hash": {"rerank": 2, "index": "sketch"},
    }.items():
        with pytest.raises(PrefillError, match=words):
            SparsePrefill(**options)
    with pytest.raises(PrefillError, match=r"keep streaming evicts .*: use keep all"):
        model.context(1000, keep=kvarn.Streaming(200), prefill=SPARSE)
    model.context(100, keep=kvarn.Streaming(200), prefill=SPARSE).close()  # nothing is evicted


def test_a_line_says_that_there_are_no_encoders(model: Model) -> None:
    said = model.context(1000, prefill=SPARSE).notices
    assert len(said) == 1 and "SimHash" in said[0]
    assert model.context(1000, Hash(), prefill=SPARSE).notices == said
    assert model.context(1000, prefill=SKETCH).notices == ()
    assert {*PREFILLS} == {"exact", "blocks", "sparse"}
    assert kvarn.SparsePrefill is SparsePrefill and kvarn.Exact is Exact


def test_the_default_index_is_that_of_the_models_encoders(model: Model) -> None:
    """Statistics name what was chosen."""
    with_encoders = kvarn.load()
    for one, index, column in (
        (model, "sketch", f"sketch-{SEED}-scaled"),
        (with_encoders, "hash", "learned-"),
    ):
        default = SparsePrefill()
        assert default.facts(one.info).index == index
        assert default.facts(one.info).column.startswith(column)
        with one.context(100, prefill=default) as context:
            rerank = " rerank=2" if index == "hash" else ""
            assert context.stats.prefill == f"sparse index={index}{rerank}"
