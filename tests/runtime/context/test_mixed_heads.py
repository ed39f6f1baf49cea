"""Contexts of models whose layers differ in their heads, or read keys and values of others: packs,
methods that choose, sparse prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.models.config import ModelConfig
from kvarn.models.layer import Layer
from kvarn.ops.reference.attention import gathered_reference, read_kv
from kvarn.ops.reference.select import largest_reference
from kvarn.runtime.attend import Attend, Auto, Full, Hash, MagicPig, TopK
from kvarn.runtime.attend.sparse import SEED, SparseAttention
from kvarn.runtime.keep import KEEPS, KeepError
from kvarn.runtime.packs.pack import pack_info
from kvarn.runtime.prefill import BlocksPrefill, Prefill, SparsePrefill
from kvarn.runtime.store import Disk, Ram
from kvarn.runtime.store.disk.archive import export_pack, import_pack
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.folder import PackFolder

from ...models import tiny_cases, tiny_models
from ..attend.spy import Spy
from ..reading import ids_of

N, N_CTX = 2100, 2400
NEXT = [5, 9, 11, 4]
COMMON: dict[str, Any] = {"budget": "4%", "sink": 4, "window": 16}
METHODS = [
    TopK(**COMMON),
    TopK(**COMMON, index="flat"),
    TopK(**COMMON, tail="means", dense_layers="1"),
    Hash(**COMMON),
    Hash(**COMMON, rerank=4),
    Hash(**COMMON, tail="means"),
    MagicPig(tables="4x20", dense_layers="none"),
    Auto(**COMMON, full_up_to=1000),
]
PREFILLS = [
    SparsePrefill(k=32, from_=0),
    SparsePrefill(k=32, from_=0, index="hash", tail="none"),
    BlocksPrefill(size=512),
]


FAST = ["gemma4", "gemma4-shared", pytest.param("gemma4-experts", marks=pytest.mark.slow)]
"""Kernels for heads of 512 numbers take LLVM longest: tests/ops/select has some of them."""


@pytest.fixture(scope="module", params=["gemma4", "gemma4-shared", "gemma4-experts"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> kvarn.Model:
    return written(request.param, tmp_path_factory.mktemp("mixed"))


def written(name: str, folder: Path) -> kvarn.Model:
    (case,) = (case for case in tiny_cases.CASES if case.name == name)
    tiny_models.write(folder / "model.gguf", case, 1)
    return kvarn.load(folder / "model.gguf")


@pytest.fixture(scope="module")
def ids(model: kvarn.Model) -> list[int]:
    return ids_of(model, N)


def decoded(context: kvarn.Context, tokens: list[int] = NEXT) -> list[np.ndarray]:
    return [context.decode(token).copy() for token in tokens]


def after(model: kvarn.Model, ids: list[int], **options: Any) -> list[np.ndarray]:
    """The logits of a context that reads all at once, then generates."""
    with model.context(N_CTX, **options) as context:
        return [context.prefill(ids).copy(), *decoded(context)]


@pytest.mark.parametrize(
    ("model", "kv"),
    [
        ("gemma4", "f16"),
        ("gemma4", "q8_0"),
        ("gemma4-shared", "q4_0"),
        ("gemma4-experts", "f16"),
    ],
    indirect=["model"],
)
def test_a_pack_goes_on_as_if_never_closed(
    kv: str, model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "pack"
    with model.context(N_CTX, store=Disk(path, kv, kv)) as context:
        context.prefill(ids[:1300])
    with model.context(N_CTX, store=Disk(path)) as context:
        got = [context.prefill(ids[1300:]).copy(), *decoded(context, NEXT[:2])]
    assert verify(path) == []
    with model.context(N_CTX, store=Disk(path)) as context:
        got += decoded(context, NEXT[2:])
        context.truncate(700)  # before what windows hold
        context.prefill(ids[700:])
        got += decoded(context)
    want = after(model, ids, store=Ram(kv, kv))
    np.testing.assert_array_equal(got, [*want, *want[1:]])
    assert pack_info(path).n_tokens == N + len(NEXT)


def test_children_and_copies_hold_the_same(
    model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    with model.context(N_CTX, store=Disk(tmp_path / "pack")) as context:
        context.prefill(ids)
    export_pack(tmp_path / "pack", tmp_path / "archive")
    import_pack(tmp_path / "archive", tmp_path / "copy")
    want = after(model, ids)[1:]
    for store in (
        Disk(tmp_path / "pack", read_only=True),
        Disk(tmp_path / "copy"),
        Disk(tmp_path / "child", parent=tmp_path / "pack"),
    ):
        with model.context(N_CTX, store=store) as context:
            np.testing.assert_array_equal(decoded(context), want)
    assert verify(tmp_path / "child") == []


def test_their_packs_name_the_heads_of_each_layer(model: kvarn.Model, tmp_path: Path) -> None:
    with model.context(N_CTX, store=Disk(tmp_path / "pack")):
        pass
    data = json.loads((tmp_path / "pack" / "pack.json").read_text())
    heads = [[layer.n_kv_heads, layer.head_dim] for layer in model.config.kv_layers]
    assert data["model"]["heads"] == heads
    folder = PackFolder(tmp_path / "pack")
    assert [list(folder.manifest.model.heads_of(i)) for i in range(len(heads))] == heads


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_budget_for_all_tokens_is_full_attention(
    method: Attend, model: kvarn.Model, ids: list[int]
) -> None:
    full = after(model, ids[:1100])
    whole = {"sink": N_CTX} if isinstance(method, MagicPig) else {"budget": "100%"}
    methods = type(method)(**whole), type(method)(**whole, dense_layers="0")
    for one in methods:
        np.testing.assert_array_equal(after(model, ids[:1100], attend=one), full)


@pytest.mark.parametrize("model", FAST, indirect=True)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_recorded_tokens_have_the_bits_and_counts_of_others(
    method: Attend, model: kvarn.Model, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> tuple[list[np.ndarray], list[dict[str, Any]]]:
        with model.context(N_CTX, method) as context:
            context.prefill(ids[:2040])
            rows = decoded(context, ids[2040:2060])
            counts = [layer.as_dict() for layer in context.stats.layers]
        return rows, [
            {k: v for k, v in one.items() if not k.endswith("_seconds")} for one in counts
        ]

    got, counts = read()
    with monkeypatch.context() as patched:
        patched.setattr(SparseAttention, "expect", lambda *_: None)
        want, plain = read()
    np.testing.assert_array_equal(got, want)
    assert counts == plain
    layers, dense = model.config.attention_layers, getattr(method, "dense_layers", "")
    assert [one["layer"] for one in counts] == list(range(len(layers)))
    for one, layer in zip(counts, layers):
        chooses = layer.window is None and str(one["layer"]) != dense
        assert one["steps"] + one["full_steps"] == 20
        assert (one["steps"] > 0) == chooses


@pytest.mark.parametrize("model", FAST, indirect=True)
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_an_index_in_a_pack_chooses_as_one_that_was_never_closed(
    method: Attend, model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    store = Disk(tmp_path / "pack")
    with model.context(N_CTX, method, store=store) as context:
        context.prefill(ids)
        got = decoded(context, NEXT[:2])
    with model.context(N_CTX, method, store=store) as context:
        got += decoded(context, NEXT[2:])
        context.store.check_saved()
    np.testing.assert_array_equal(got, after(model, ids, attend=method)[1:])
    with model.context(N_CTX, Full(), store=Disk(tmp_path / "plain")) as context:
        context.prefill(ids)
    with model.context(N_CTX, method, store=Disk(tmp_path / "plain")) as context:
        np.testing.assert_array_equal(decoded(context, NEXT[:2]), got[:2])


def test_layers_choose_by_queries_of_their_own(model: kvarn.Model, ids: list[int]) -> None:
    """Also those that read the keys and values of others."""
    config, method = model.config, TopK(index="flat", budget=40, sink=4, window=16)
    spy = Spy(method)
    with model.context(N_CTX, spy) as context:
        context.prefill(ids[:600])
        context.decode(5)
        group, n_kv_heads = config.n_heads // config.n_kv_heads, config.n_kv_heads
        whole = [i for i, layer in enumerate(config.attention_layers) if layer.window is None]
        seen = set()
        for number in whole:
            layer, q, stop, out = spy.calls[number]
            store = context.store
            keys, values = read_kv(store.segments(layer.index), store.layout, n_kv_heads, 0, stop)
            scores = np.stack([keys[:, h // group] @ q[0, h] for h in range(config.n_heads)])
            k = max(1, 40 // group)
            (tokens,) = largest_reference(scores, n_kv_heads, (4, stop - 16, stop), k, SEED)
            seen.add(tuple(tokens.tolist()))
            want = gathered_reference(
                q, keys, values, tokens[None].astype(np.uint32), np.array([len(tokens)]),
                softmax=layer.softmax,
            )  # fmt: skip
            np.testing.assert_allclose(out, want, rtol=0, atol=2e-5 * np.abs(want).max())
        assert len(seen) == len(whole)


@pytest.mark.parametrize("model", FAST, indirect=True)
@pytest.mark.parametrize("prefill", PREFILLS, ids=str)
def test_sparse_prompts_do_not_depend_on_calls_or_stores(
    prefill: Prefill, model: kvarn.Model, ids: list[int], tmp_path: Path
) -> None:
    whole_blocks = ids[:2048]
    exact = after(model, whole_blocks)
    assert not np.array_equal(after(model, whole_blocks, prefill=prefill)[0], exact[0])
    want = after(model, ids, prefill=prefill)
    until = {"until": N} if isinstance(prefill, BlocksPrefill) else {}
    known = type(prefill)(**vars(prefill) | until)
    with model.context(N_CTX, prefill=known) as context:
        for first in range(0, N, 300):
            context.prefill(ids[first : first + 300])
        np.testing.assert_array_equal([context.logits, *decoded(context)], want)
    store = Disk(tmp_path / "pack")
    with model.context(N_CTX, store=store, prefill=known) as context:
        context.prefill(ids[:1500])
    with model.context(N_CTX, store=store, prefill=known) as context:
        np.testing.assert_array_equal(context.prefill(ids[1500:]), want[0])
    assert verify(tmp_path / "pack") == []


@pytest.mark.parametrize("model", FAST, indirect=True)
def test_a_sparse_prompt_that_reads_all_is_an_exact_one(model: kvarn.Model, ids: list[int]) -> None:
    prefill = SparsePrefill(k=2048, from_=0)
    np.testing.assert_array_equal(after(model, ids, prefill=prefill), after(model, ids))


def test_methods_that_evict_say_why_they_cannot(model: kvarn.Model) -> None:
    for name in KEEPS:
        if name != "all":
            with pytest.raises(KeepError, match=f"keep {name} cannot be combined with"):
                model.context(4096, keep=KEEPS[name](budget=100))


def test_filled_contexts_have_tokens_in_all_layers(model: kvarn.Model, ids: list[int]) -> None:
    with model.context(N_CTX, TopK(**COMMON)) as context:
        context.prefill(ids[:40])
        context.fill(2000)
        rows = decoded(context)
    assert np.isfinite(rows).all() and np.std(rows, axis=0).min() > 0


@pytest.mark.parametrize("n", [40, 512])
def test_rows_that_nobody_needs_are_not_computed(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last layer that stores keys and values; what is wanted keeps its bits."""
    model = written("gemma4-shared", tmp_path)
    ids, rows, known = np.array(ids_of(model, n), np.int32), [], Layer.finish

    def finish(layer: Layer, b: Any) -> None:
        rows.append(len(b.ids))
        known(layer, b)

    monkeypatch.setattr(Layer, "finish", finish)

    def read() -> list[np.ndarray]:
        with model.context(1024) as context:
            return [context.prefill(ids.tolist()).copy(), *decoded(context)]

    got = read()
    least = model.transformer.device.least_rows
    assert rows[:6] == [n] * 3 + [least] * 3
    monkeypatch.setattr(ModelConfig, "last_storing", 5)
    vars(model.config).pop("last_storing", None)
    rows.clear()
    want = read()
    assert rows[:6] == [n] * 5 + [least]
    np.testing.assert_array_equal(got, want)
