"""Packs whose prompts were read sparsely: marked, bound to their mode, the same in any sessions."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.select import means_item_bytes
from kvarn.runtime.attend import Hash
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import build_pack, pack_info
from kvarn.runtime.prefill import Exact, PrefillError, SparsePrefill
from kvarn.runtime.store import Disk, PackError
from kvarn.runtime.store.disk import store as disk_store
from kvarn.runtime.store.disk.archive.exporting import export_pack
from kvarn.runtime.store.disk.archive.importing import import_pack
from kvarn.runtime.store.disk.checking.verify import verify

from ..reading import ids_of
from .pack_files import bytes_of, write_checked

SPARSE = SparsePrefill(k=40, index="hash", from_=1024, rerank=1)
RERANKED = SparsePrefill(k=40, index="hash", from_=1024)
N = 2700


@pytest.fixture(scope="module")
def pack(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of 2,700 tokens, read at once."""
    path = tmp_path_factory.mktemp("packs") / "pack"
    build_pack(model, path, ids_of(model, N), N + 100, prefill=SPARSE)
    return path


@pytest.fixture(scope="module")
def sketched(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, chosen by sketches: the default without learned encoders."""
    path = tmp_path_factory.mktemp("packs") / "sketched"
    prefill = SparsePrefill(k=40, from_=1024)
    build_pack(model, path, ids_of(model, N), N + 100, prefill=prefill)
    return path


def test_a_pack_says_how_it_was_read(pack: Path, model: Model, tmp_path: Path) -> None:
    data = json.loads((pack / "pack.json").read_text())
    column = "simhash-32-20240517"
    assert data["prefill"] == {
        "mode": "sparse",
        "index": "hash",
        "k": 40,
        "from": 1024,
        "tail": True,
        "column digest": column,
    }
    info = pack_info(pack)
    assert info.prefill == f"sparse (index {column}, k 40, from 1024, tail)"
    assert info.indexes == ["means-20240517", column]
    assert not list(verify(pack))
    build_pack(model, tmp_path / "exact", ids_of(model, 10), 100)
    assert "prefill" not in json.loads((tmp_path / "exact" / "pack.json").read_text())
    assert pack_info(tmp_path / "exact").prefill == "exact"


def test_a_pack_goes_on_with_as_many_candidates_as_it_was_begun_with(
    pack: Path, model: Model, tmp_path: Path
) -> None:
    ids, path = ids_of(model, N), tmp_path / "pack"
    for prefill, stop in ((RERANKED, 1600), (None, N)):
        with model.context(N + 100, store=Disk(path), prefill=prefill) as context:
            context.prefill(ids[len(context.tokens) : stop])
            logits = context.logits.copy()
    with model.context(N + 100, prefill=RERANKED) as context:
        np.testing.assert_array_equal(context.prefill(ids), logits)
    with model.context(N + 100, prefill=SPARSE) as context:
        assert not np.array_equal(context.prefill(ids), logits)
    data = json.loads((path / "pack.json").read_text())
    assert data["prefill"]["rerank"] == 2
    facts = Disk(path).recorded_prefill()
    assert facts is not None and facts.rerank == 2
    assert str(facts) == "sparse (index simhash-32-20240517, k 40 of 80, from 1024, tail)"
    for other in (SPARSE, replace(RERANKED, rerank=3)):
        with pytest.raises(
            PackError, match=r"k 40 of 80, from 1024, tail\), and sparse .*is asked"
        ):
            model.context(N + 100, store=Disk(path), prefill=other)
    with pytest.raises(PackError, match=r"k 40, from.*, and .*k 40 of 80.* is asked for"):
        model.context(N + 100, store=Disk(pack), prefill=RERANKED)
    for rerank in (0, "4", True):
        write_checked(path, {**data, "prefill": {**data["prefill"], "rerank": rerank}})
        with pytest.raises(PackError, match=r"pack.json is not one that kvarn writes"):
            pack_info(path)


def test_sessions_give_thebytes_of_one(pack: Path, model: Model, tmp_path: Path) -> None:
    ids, path, start = ids_of(model, N), tmp_path / "pack", 0
    for stop in (300, 1100, 1536, 2600, N):
        prefill = SPARSE if start == 0 else None  # a pack goes on in its own mode
        with model.context(N + 100, store=Disk(path), prefill=prefill) as context:
            logits = context.prefill(ids[start:stop]).copy()
        start = stop
    assert bytes_of(path) == bytes_of(pack)
    with model.context(N + 100, store=Disk(pack, read_only=True)) as context:
        np.testing.assert_array_equal(context.logits, logits)


def test_sketches_are_kept_with_their_centre(sketched: Path, model: Model, tmp_path: Path) -> None:
    """In columns of the centre that each chunk began with, the same in any sessions."""
    data = json.loads((sketched / "pack.json").read_text())["prefill"]
    assert (data["index"], data["column digest"]) == ("sketch", "sketch-20240517-scaled")
    info = pack_info(sketched)
    assert info.prefill == "sparse (index sketch-20240517-scaled, k 40, from 1024, tail)"
    names = ["sketch-20240517-scaled-c1", "sketch-20240517-scaled-c2"]
    names += [name.replace("-c", "-factors-c") for name in names]
    assert info.indexes == sorted(["frame", "means-20240517", *names])
    assert not list(verify(sketched))
    ids, path, start = ids_of(model, N), tmp_path / "pack", 0
    for stop in (300, 1100, 1536, 2047, 2100, 2600, N):
        prefill = SparsePrefill(k=40, from_=1024) if start == 0 else None
        with model.context(N + 100, store=Disk(path), prefill=prefill) as context:
            logits = context.prefill(ids[start:stop]).copy()
        start = stop
    assert bytes_of(path) == bytes_of(sketched)
    with model.context(N + 100, store=Disk(sketched, read_only=True)) as context:
        np.testing.assert_array_equal(context.logits, logits)
    with pytest.raises(
        PackError, match=r"sketch-20240517.*scaled.*, and .*simhash-32.* is asked for"
    ):
        model.context(N + 100, store=Disk(sketched), prefill=SPARSE)


def test_another_mode_is_refused_with_both_named(pack: Path, model: Model, tmp_path: Path) -> None:
    own = r"read with prefill sparse \(index simhash-32-20240517, k 40, from 1024, tail\)"
    for other, asked in (
        (Exact(), "exact"),
        (replace(SPARSE, k=41), r"sparse \(index simhash-32-20240517, k 41, from 1024, tail\)"),
        (replace(SPARSE, tail="none"), r"sparse \(index simhash-32-20240517, k 40, from 1024\)"),
    ):
        with pytest.raises(PackError, match=f"{own}, and {asked} is asked for: omit the prefill"):
            model.context(N + 100, store=Disk(pack), prefill=other)
    model.context(N + 100, Hash(bits=64), store=Disk(pack)).close()  # of generated tokens
    build_pack(model, tmp_path / "exact", ids_of(model, 10), 100)
    with pytest.raises(PackError, match=r"read with prefill exact, and sparse \("):
        model.context(100, store=Disk(tmp_path / "exact"), prefill=SPARSE)


def test_questions_may_be_read_in_any_way(pack: Path, model: Model, tmp_path: Path) -> None:
    before, question = bytes_of(pack), [5, 6, 7]
    answers = []
    for prefill in (None, Exact(), SPARSE):
        store = Disk(pack, read_only=True)
        with model.context(N + 100, store=store, prefill=prefill) as context:
            answers.append(context.prefill(question).copy())
    np.testing.assert_array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[1], answers[2])
    assert bytes_of(pack) == before


def test_a_child_may_differ_and_cannot_be_exported(
    pack: Path, model: Model, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    with model.context(N + 100, store=Disk(child, parent=pack), prefill=Exact()) as context:
        context.prefill([5] * 20)
    info = pack_info(child)
    assert (info.prefill, info.parent_prefill) == ("exact", pack_info(pack).prefill)
    with pytest.raises(PackError, match=r"its prompts were read exact, those of its parent .* spa"):
        export_pack(child, tmp_path / "child.tar")
    export_pack(pack, tmp_path / "pack.tar")
    import_pack(tmp_path / "pack.tar", tmp_path / "copy")
    assert pack_info(tmp_path / "copy").prefill == info.parent_prefill
    assert bytes_of(tmp_path / "copy") == bytes_of(pack)


def test_columns_that_are_missing_are_computed_again(
    pack: Path, model: Model, tmp_path: Path
) -> None:
    """In memory, where the pack stays as it is: an exact pack has no signatures."""
    exact = tmp_path / "exact"
    build_pack(model, exact, ids_of(model, N), N + 100)
    assert pack_info(exact).indexes == []
    store = Disk(exact, read_only=True)
    with model.context(N + 100, store=store, prefill=SPARSE) as context:
        context.index()
        prompts = context._cache.attend
        assert N > 2 * SEGMENT
        assert all((kept.column.filled == N).all() for kept in (prompts._index, prompts._tail))
        context.prefill([5, 6])
        assert all(layer.steps == 2 for layer in context.stats.prompt_layers)
    assert pack_info(exact).indexes == []


def test_a_model_with_windows_keeps_its_signatures_and_is_read_sparsely(tmp_path: Path) -> None:
    windowed, store = kvarn.load(), Disk(tmp_path / "pack")
    assert any(layer.window for layer in windowed.config.kv_layers)
    prefill = SparsePrefill(k=40, index="hash", from_=1024)
    with windowed.context(2000, store=store, prefill=prefill) as context:
        context.prefill(ids_of(windowed, 1800))
        for layer, reads in zip(windowed.config.kv_layers, context.stats.prompt_layers):
            assert bool(reads.steps) == (layer.window is None)
    with windowed.context(2000, store=store) as context:
        assert (context._cache.attend._index.column.filled == 1024).all()


def test_modes_of_newer_versions_are_refused(pack: Path, model: Model) -> None:
    facts = Disk(pack).recorded_prefill()
    assert facts is not None
    from kvarn.runtime.prefill import recorded

    assert recorded(facts) == SPARSE
    assert recorded(replace(facts, tail=False)) == replace(SPARSE, tail="none")
    with pytest.raises(PrefillError, match="this kvarn cannot go on so"):
        recorded(replace(facts, mode="panels"))
    assert recorded(None) == kvarn.Exact()


def test_a_copied_index_changes_no_bit_and_is_told(
    pack: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, told = [], []
    for worth in (1 << 60, 1):
        monkeypatch.setattr(disk_store, "WORTH_COPYING", worth)
        store = Disk(pack, read_only=True)
        with model.context(N + 100, Hash(budget=40), store=store, prefill=SPARSE) as context:
            answers.append([context.prefill([5, 6, 7]).copy(), context.decode(8).copy()])
            told.append((context.stats.copied_index_bytes, str(context.stats)))
    np.testing.assert_array_equal(*answers)
    (none, before), (n_bytes, after) = told
    config = model.config
    item = 4 + means_item_bytes(config.head_dim)
    assert (none, n_bytes) == (0, 2 * SEGMENT * item * config.n_kv_heads * config.n_layers)
    assert "copied" not in before and " KiB of index copied to memory" in after
