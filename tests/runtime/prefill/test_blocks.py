"""Prompts read in blocks: the mask in NumPy, equality with exact reading, the same bits in any
cuts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.jit import threads
from kvarn.ops.reference.attention import read_kv
from kvarn.runtime.attend import TopK
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.engine import on_engine
from kvarn.runtime.methods import called
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import build_pack
from kvarn.runtime.prefill import BlocksPrefill, Exact, PrefillError, SparsePrefill
from kvarn.runtime.prefill.blocks import BlockPrompts
from kvarn.runtime.prefill.registry import recorded
from kvarn.runtime.rehearsal import N_FILLED, N_READ, read_deep
from kvarn.runtime.store import Disk, Ram

from ..reading import ids_of
from .sparse_reading import N, Spy, kv_of, read_prompt, same_kv

BLOCKS = BlocksPrefill(1024)
UNTIL = N // 1024 * 1024


def _masked(q: np.ndarray, keys: np.ndarray, values: np.ndarray, seen, scale: float) -> np.ndarray:
    """softmax(scale q K^T + mask) V of one row (H, E), in float64."""
    out, group = np.empty(q.shape), len(q) // keys.shape[1]
    for h, x in enumerate(q.astype(np.float64)):
        scores = scale * keys[:, h // group].astype(np.float64) @ x
        p = np.exp(scores[seen] - scores[seen].max())
        out[h] = p @ values[seen, h // group] / p.sum()
    return out


@pytest.mark.parametrize(
    ("kind", "size", "rest"),
    [
        ("f16", 1024, "exact"),
        ("q8_0", 512, "exact"),
        ("q4_0", 1024, "exact"),
        ("f16", 512, "block"),
    ],
)
def test_each_row_reads_the_first_tokens_and_its_block(
    model: Model, monkeypatch: pytest.MonkeyPatch, kind: str, size: int, rest: str
) -> None:
    spy = Spy(monkeypatch, BlockPrompts)
    context, _ = read_prompt(model, BlocksPrefill(size, rest=rest), store=Ram(kind, kind))
    until, n_rows = N if rest == "block" else N // size * size, 0
    for layer, q, start, out in spy.calls:
        for row in {0, len(q) // 2, len(q) - 1}:
            position = start + row
            keys, values = read_kv(
                layer.store.segments(layer.index), layer.store.layout, 2, 0, position + 1
            )
            token, first = np.arange(position + 1), position // size * size
            seen = (token < 128) | (token >= first) | (position >= until)
            want = _masked(q[row], keys, values, seen, layer.config.attention_scale)
            np.testing.assert_allclose(out[row], want, atol=5e-6)
            n_rows += 1
    assert n_rows > 20
    reads = context.stats.as_dict()["prompt_layers"]
    assert all(layer["steps"] == until - size for layer in reads[:-1])
    assert f"prefill {called(BlocksPrefill(size, rest=rest))}: attended to" in str(context.stats)


@pytest.mark.parametrize("n", [1, 1023, 2047])
def test_less_than_two_blocks_have_the_bits_of_exact(model: Model, n: int) -> None:
    exact, want = read_prompt(model, Exact(), (n,), n=n)
    context, got = read_prompt(model, BLOCKS, (n,), n=n)
    np.testing.assert_array_equal(got, want)
    assert same_kv(exact, context)


def test_two_blocks_differ_from_exact(model: Model) -> None:
    exact, _ = read_prompt(model, Exact(), (2048,), n=2048)
    context, _ = read_prompt(model, BLOCKS, (2048,), n=2048)
    assert not same_kv(exact, context)
    first = [np.array_equal(a[:1024], b[:1024]) for a, b in zip(kv_of(exact), kv_of(context))]
    assert all(first)


def test_the_last_block_may_end_within_a_chunk(model: Model) -> None:
    """What follows it in the chunk reads everything, as if it were read apart."""
    ids, block = ids_of(model, N), replace(BLOCKS, rest="block", until=2300)
    context, want = read_prompt(model, block)
    assert context.store.n_apart == 2300
    with model.context(N + 40, prefill=replace(block, until=None)) as cut:
        cut.prefill(ids[:2300])
        assert cut.store.n_apart == 2300
        np.testing.assert_array_equal(cut.prefill(ids[2300:]), want)
        assert same_kv(context, cut)
    exact, _ = read_prompt(model, BLOCKS)
    pairs = list(zip(kv_of(exact), kv_of(context)))
    assert all(np.array_equal(a[:2048], b[:2048]) for a, b in pairs)
    assert not all(np.array_equal(a[2048:2300], b[2048:2300]) for a, b in pairs)


@pytest.mark.parametrize(
    "prefill", [BLOCKS, *(replace(BLOCKS, rest=rest) for rest in ("sparse", "block"))], ids=str
)
def test_cuts_and_threads_give_the_same_bits(model: Model, prefill: BlocksPrefill) -> None:
    """Where the first call brings the whole prompt, or its user says how long it is."""
    context, want = read_prompt(model, prefill)
    before = on_engine(threads.n_threads)
    for n_threads, cuts in (
        (1, (N,)),
        (2, (100, 1024, 1025, 1536, 1600, 2040, 2060, 2600, N)),
    ):
        on_engine(threads.set_threads, min(n_threads, threads.max_threads()))
        other, got = read_prompt(model, replace(prefill, until=N), cuts)
        np.testing.assert_array_equal(got, want)
        assert same_kv(context, other)
    on_engine(threads.set_threads, before)


def test_the_prompt_that_comes_first_says_where_blocks_end(model: Model) -> None:
    for cuts, n_apart in (((N,), UNTIL), ((2050, N), 2048), ((100, N), 0)):
        context, _ = read_prompt(model, BLOCKS, cuts)
        assert context.store.n_apart == n_apart
    context.truncate(0)
    context.prefill(ids_of(model, N))
    assert context.store.n_apart == UNTIL  # the context was empty again
    fresh, _ = read_prompt(model, BLOCKS)
    assert same_kv(fresh, context)
    generated = model.context(N, prefill=BLOCKS)
    generated.decode(5)
    generated.prefill(ids_of(model, N - 1))
    assert generated.store.n_apart is None  # all was read exactly


@pytest.mark.parametrize(("n_shared", "n", "n_kept"), [(1500, 2600, 1500), (2300, 2400, 2300),
    (1500, 1700, 1024), (2650, 3200, 2048), (700, 1000, 700)])  # fmt: skip
@pytest.mark.parametrize("rest", ["exact", "block"])
def test_another_prompt_is_read_as_in_an_empty_context(
    model: Model, n_shared: int, n: int, n_kept: int, rest: str
) -> None:
    """Blocks end elsewhere, so some of what both prompts share is read again; not where the rest is
    a block, which ends with the prompt."""
    ids, prefill = ids_of(model, N)[:n_shared], replace(BLOCKS, rest=rest)
    ids += ids_of(model, n - n_shared, seed=1)
    context, fresh = (model.context(4000, prefill=prefill) for _ in range(2))
    context.prefill(ids_of(model, N))
    n_kept = n_kept if rest == "exact" else n_shared
    assert context.cut_to_prompt(ids) == n_kept
    np.testing.assert_array_equal(context.prefill(ids[n_kept:]), fresh.prefill(ids))
    assert same_kv(context, fresh)
    assert context.store.n_apart == fresh.store.n_apart


def test_a_mark_of_other_blocks_is_not_returned_to(model: Model) -> None:
    ids, context = ids_of(model, N), model.context(N, prefill=BLOCKS)
    context.prefill(ids[:2000])
    mark = context.mark()
    context.prefill([5, 6])
    context.return_to(mark)
    assert len(context.tokens) == 2000
    context.truncate(0)
    context.prefill(ids)
    with pytest.raises(kvarn.KvarnError, match="read them in another way"):
        context.return_to(mark)


def test_what_follows_the_blocks_is_read_sparsely(model: Model, tmp_path: Path) -> None:
    """As `sparse` reads it over the same K and V; the first block is read exactly."""
    ids, sparse = ids_of(model, N), SparsePrefill(k=40, tail="none", index="hash")
    prefill = BlocksPrefill(1024, rest="sparse", sparse=sparse)
    build_pack(model, tmp_path / "blocks", ids[:UNTIL], N, prefill=BLOCKS)
    _, want = read_prompt(model, prefill)
    store = Disk(tmp_path / "blocks", read_only=True)
    with model.context(N, store=store, prefill=replace(sparse, from_=1024)) as after:
        np.testing.assert_array_equal(after.prefill(ids[UNTIL:]), want)
    exact, _ = read_prompt(model, Exact(), (2000,), n=2000)
    short, _ = read_prompt(model, prefill, (2000,), n=2000)
    first = zip(kv_of(exact), kv_of(short))
    assert all(np.array_equal(a[:1024], b[:1024]) for a, b in first)
    with model.context(N, store=store, prefill=prefill) as after:
        assert any("read sparse" in line for line in after.notices)
        np.testing.assert_array_equal(after.prefill(ids[UNTIL:]), want)


def test_layers_with_windows_read_them(tmp_path: Path) -> None:
    """And a rehearsal reads a block."""
    windowed = kvarn.load()
    assert any(layer.window for layer in windowed.config.kv_layers)
    with windowed.context(N_FILLED + N_READ, prefill=BLOCKS.shortened()) as context:
        read_deep(context)
        for layer, reads in zip(windowed.config.kv_layers, context.stats.prompt_layers):
            assert bool(reads.steps) == (layer.window is None)


@pytest.mark.parametrize("rest", ["exact", "block"])
def test_windows_may_stop_at_the_borders_of_blocks(
    monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    """Up to the last block; a pack that began so is gone on with so."""
    windowed, calls, inner = kvarn.load(), [], BlockPrompts.attend_prompt

    def attend(prompts, layer, q, start, out) -> None:
        inner(prompts, layer, q, start, out)
        window, stop, store = layer.config.window, int(start) + len(q), layer.store
        if window is not None and start + len(q) > 512:
            first = max(0, start - window)
            places = store.segments(layer.index), store.layout_of(layer.index), q.shape[1]
            calls.append((layer, q.copy(), int(start), out.copy(), read_kv(*places, first, stop)))

    monkeypatch.setattr(BlockPrompts, "attend_prompt", attend)
    prefill = BlocksPrefill(512, rest=rest, windows="stop")
    context, _ = read_prompt(windowed, prefill)
    until, n_cut = N if rest == "block" else N // 512 * 512, 0
    assert {layer.config.window for layer, *_ in calls} == {128}
    for layer, q, start, out, (keys, values) in calls:
        token = np.arange(start + len(q) - len(keys), start + len(q))
        for row in {0, 60, 127, 128, len(q) - 1} & {*range(len(q))}:
            position = start + row
            border = position // 512 * 512 if position < until else 0
            seen = (token >= border) & (token > position - 128) & (token <= position)
            n_cut += seen.sum() < 128
            want = _masked(q[row], keys, values, seen, layer.config.attention_scale)
            np.testing.assert_allclose(out[row], want, atol=5e-6)
    assert n_cut > 20
    across, _ = read_prompt(windowed, replace(prefill, windows="across"))
    assert not np.array_equal(kv_of_last(context), kv_of_last(across))
    assert prefill.resolved(windowed.info).facts(windowed.info).windows == "stop"
    assert recorded(prefill.facts(windowed.info)) == prefill


def kv_of_last(context: kvarn.Context) -> np.ndarray:
    """Keys of the last layer, which has no window."""
    store, layer = context.store, context.store.n_layers - 1
    return read_kv(store.segments(layer), store.layout, store.n_kv_heads, 0, N)[0]


def test_a_model_without_windows_records_none(model: Model) -> None:
    prefill = replace(BLOCKS, windows="stop").resolved(model.info)
    assert prefill == BLOCKS and prefill.facts(model.info).windows == ""


def test_refusals_in_words(model: Model) -> None:
    for words, options in {
        "blocks:700: expected a multiple of 512 tokens, from 512 on": {"size": 700},
        "blocks:0: expected a multiple": {"size": 0},
        "until is -1, expected a whole": {"until": -1},
        "rest is 'none', expected one of exact, sparse, block": {"rest": "none"},
        "windows is 'none', expected one of across, stop": {"windows": "none"},
    }.items():
        with pytest.raises(PrefillError, match=words):
            BlocksPrefill(**options)
    with pytest.raises(PrefillError, match=r"^prefill blocks may read any .* keep streaming"):
        model.context(1000, keep=kvarn.Streaming(200), prefill=BLOCKS)
    with pytest.raises(PrefillError, match=r"1,024 tokens, fewer than the window of 1,100 \(win"):
        model.context(1000, TopK(window=1100), prefill=BLOCKS)
    windowed = kvarn.load()
    window = max(layer.window or 0 for layer in windowed.config.kv_layers)
    if window > 512:
        with pytest.raises(PrefillError, match=rf"512 tokens, fewer .* {window:,} \(layers of"):
            windowed.context(1000, prefill=BlocksPrefill(512))
    assert BLOCKS.host_only == "prefill blocks"


def test_words_name_it_and_its_size() -> None:
    def of(**words) -> object:
        return ContextRequest.of(words).prefill

    assert of(prefill="blocks") == BlocksPrefill()
    assert of(prefill="blocks:4K") == of(prefill="blocks", prefill_size=4096)
    assert of(prefill="blocks:4096", prefill_rest="sparse") == BlocksPrefill(4096, rest="sparse")
    assert of(prefill="blocks", prefill_rest="block") == BlocksPrefill(rest="block")
    with pytest.raises(kvarn.KvarnError, match="blocks:4096 and prefill_size say the same"):
        of(prefill="blocks:4096", prefill_size=512)
    with pytest.raises(kvarn.KvarnError, match="expected a whole number"):
        of(prefill="blocks:few")
