"""Indexes of faiss against a sort of all products, however the tokens came in."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvarn.jit import threads
from kvarn.runtime.attend import AttendError, Full, Sparse, TopK
from kvarn.runtime.engine import on_engine
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk
from lab.methods import Hnsw, Ivf

from ...runtime import reading
from ...runtime.reading import ids_of

COMMON = {"budget": 40, "sink": 4, "window": 16}
FLAT = TopK(index="flat", **COMMON)
METHODS = [Ivf(**COMMON), Hnsw(**COMMON)]
EXTRA = "faiss is only needed for ivf and hnsw: pip install faiss-cpu"


def name_of(method: Sparse) -> str:
    return method.name


@pytest.fixture(scope="module")
def model(model: Model) -> Model:
    pytest.importorskip("faiss", reason=EXTRA)
    return model


def decoded(context, ids: list[int]) -> np.ndarray:
    return np.stack([context.decode(token).copy() for token in ids])


def read(model: Model, attend, n: int = 600, steps: int = 4) -> tuple:
    return reading.read(model, attend, n, steps)


def layers_of(context) -> list[dict]:
    return context.stats.as_dict()["layers"]


def test_few_keys_are_all_compared(model: Model) -> None:
    """Up to 1,024 keys, `ivf` is exact."""
    (_, want), (_, got) = read(model, FLAT), read(model, METHODS[0])
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_it_finds_most_of_what_flat_finds(model: Model, method: Sparse) -> None:
    few = {"budget": 200, "probe": 1}
    best = layers_of(read(model, replace(FLAT, **few), n=5000)[0])
    for some, most in zip(layers_of(read(model, replace(method, **few), n=5000)[0]), best):
        assert 0.6 * most["covered_mass"] < some["covered_mass"] < 1.02 * most["covered_mass"]
        assert some["attended_tokens"] <= 2 * 4 * (4 + 16 + 200)
        assert some["index_bytes"] > 0


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_a_budget_of_the_whole_context_gives_the_bits_of_full(model: Model, method) -> None:
    _, want = read(model, Full())
    _, got = read(model, replace(method, budget="100%"))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_any_number_of_threads_gives_the_same_bits(model: Model, method: Sparse) -> None:
    before, results = on_engine(threads.n_threads), []
    for n in (1, min(2, threads.max_threads())):
        on_engine(threads.set_threads, n)
        results.append(read(model, method, n=1500)[1])
    on_engine(threads.set_threads, before)
    np.testing.assert_array_equal(*results)


def test_generated_tokens_extend_it(model: Model, capfd: pytest.CaptureFixture[str]) -> None:
    """Lists are made when there are 1,024 keys, however these came in."""
    ids, heads = ids_of(model, 1200), []
    for n_read in (1190, 1000):
        context = model.context(1200, METHODS[0])
        context.prefill(ids[:n_read])
        decoded(context, ids[n_read:])
        heads.append(context._cache.attend._index._layers[0])
    for one in heads:
        assert one[0]._lists == 32
        assert 1200 - 16 <= one[0].n <= 1200 - 8
    once, steps = (one[0]._index.reconstruct_n(0, 1000) for one in heads)
    np.testing.assert_array_equal(once, steps)
    said = capfd.readouterr()
    assert "WARNING" not in said.out + said.err


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_overwritten_tokens_are_not_found(model: Model, method: Sparse) -> None:
    ids = ids_of(model, 900)
    context, _ = read(model, method, n=800)
    context.truncate(700)  # some of the tokens cut off are indexed
    context.prefill(ids[100:200])
    other = model.context(804, method)
    other.prefill(ids[:700])
    other.prefill(ids[100:200])
    np.testing.assert_array_equal(decoded(context, ids[:4]), decoded(other, ids[:4]))


def test_a_pack_is_indexed_when_it_is_opened(model: Model, tmp_path: Path) -> None:
    ids, pack = ids_of(model, 1063), Disk(tmp_path / "pack")
    with model.context(1100, METHODS[0], store=pack) as context:
        context.prefill(ids[:1060])
        want = decoded(context, ids[1060:])
    with model.context(1100, METHODS[0], store=pack) as context:
        context.truncate(1060)
        seen = []
        context.index(lambda *at: seen.append(at))
        assert seen == [(1, 2), (2, 2)]
        np.testing.assert_array_equal(decoded(context, ids[1060:]), want)


def test_without_faiss_one_line_says_what_to_install(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    for method in (Ivf(), Hnsw()):
        with pytest.raises(AttendError) as raised:
            tiny.context(64, method)
        assert str(raised.value) == "ivf and hnsw need faiss: pip install 'faiss-cpu>=1.9'"
