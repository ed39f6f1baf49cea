"""Packs with the index of a method: readers index only what follows the last full segment."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.ops import select
from kvarn.runtime.attend import ATTENDS, Attend
from kvarn.runtime.attend.encoders.networks import LayerNetworks
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import index_pack, pack_info
from kvarn.runtime.store import Disk, PackError
from kvarn.runtime.store.disk.checking.verify import verify

from ..reading import ids_of

N, N_CTX = 9300, 9600
"""Long enough for questions to be read sparsely."""
FULL = N // 1024 * 1024
BUDGET = {"budget": 40, "sink": 4, "window": 16}
METHODS = [
    kvarn.TopK(**BUDGET),
    kvarn.TopK(**BUDGET, tail="means"),
    kvarn.Hash(**BUDGET),
]
TABLES = kvarn.MagicPig(tables="6x20", dense_layers="none")


@pytest.fixture(scope="module")
def plain(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack without an index."""
    path = tmp_path_factory.mktemp("packs") / "plain"
    with model.context(N_CTX, store=Disk(path)) as context:
        context.prefill(ids_of(model, 600))
        context.fill(N)
    return path


@pytest.fixture
def indexed(plain: Path, tmp_path: Path) -> Callable[[Model, Attend], Path]:
    """Makes a copy of it with the index of a method."""

    def made(model: Model, attend: Attend) -> Path:
        index_pack(model, shutil.copytree(plain, tmp_path / "indexed"), attend, N_CTX)
        return tmp_path / "indexed"

    return made


def ask(model: Model, path: Path, attend: Attend) -> tuple[list[np.ndarray], int]:
    """Logits after a question and some tokens, and bytes of index that were made in memory."""
    with model.context(N_CTX, attend, store=Disk(path, read_only=True)) as context:
        assert context.prefill(ids_of(model, 20, seed=1)).any()
        logits = [context.decode(token).copy() for token in (3, 4, 5)]
        return logits, context.store.unsaved_index_bytes


@pytest.mark.parametrize("attend", [*METHODS, TABLES], ids=str)
def test_an_index_that_is_kept_gives_the_same_answers(
    attend: Attend, model: Model, plain: Path, indexed: Callable[[Model, Attend], Path]
) -> None:
    path = indexed(model, attend)
    info = pack_info(path)
    assert info.n_tokens == N and info.indexes
    of = {attend.name} - {TABLES.name}  # which has tables of 16,384 tokens
    assert of <= set(info.index_of) <= {*ATTENDS, "--tail means"}
    kept, n_kept = ask(model, path, attend)
    made, n_made = ask(model, plain, attend)
    np.testing.assert_array_equal(kept, made)
    assert n_kept == 0 < n_made


@pytest.mark.parametrize("attend", METHODS, ids=str)
def test_a_reader_indexes_the_open_segment_alone(
    attend: Attend,
    model: Model,
    indexed: Callable[[Model, Attend], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, spans = indexed(model, attend), []

    def spy(owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def spied(*args: Any, **options: Any) -> Any:
            spans.append((name, *args[-2:]))
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, spied)

    for name in ("sketch_keys", "block_means", "key_moments"):
        spy(select, name)
    spy(LayerNetworks, "sign_keys")
    ask(model, path, attend)
    assert spans
    assert not [span for span in spans if span[1] < FULL or span[0] == "key_moments"]


def test_a_reader_says_once_that_it_makes_an_index(
    model: Model, plain: Path, indexed: Callable[[Model, Attend], Path]
) -> None:
    told: list[str] = []
    attend = kvarn.TopK(**BUDGET)
    telling = load(model.path, notice=told.append)
    ask(telling, indexed(model, attend), attend)
    assert not told
    ask(telling, plain, attend)
    (line,) = told
    assert "no index for this method" in line and "`kvarn pack index NAME`" in line


def test_columns_that_no_method_has_any_more_are_left_as_they_are(
    model: Model, plain: Path, tmp_path: Path
) -> None:
    """Such as that of `topk --levels 2`, which earlier versions had."""
    path, attend = shutil.copytree(plain, tmp_path / "old"), kvarn.TopK(**BUDGET, tail="means")
    with model.context(N_CTX, store=Disk(path)) as context:
        context.store.column("blocks-20240517", 15).filled[:] = N
        context.prefill([5])
    want, n_made = ask(model, plain, attend)
    with model.context(N_CTX, attend, store=Disk(path)) as context:
        context.truncate(N)
        context.index()
    assert verify(path) == []
    assert "blocks-20240517" in pack_info(path).indexes
    kept, n_kept = ask(model, path, attend)
    np.testing.assert_array_equal(kept, want)
    assert n_kept == 0 < n_made


def test_methods_without_an_index_are_refused(model: Model, plain: Path) -> None:
    with pytest.raises(PackError, match="an index is of a method that chooses tokens: give attend"):
        index_pack(model, plain, kvarn.Full(), N_CTX)
