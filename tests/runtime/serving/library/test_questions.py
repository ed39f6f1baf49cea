"""Questions about what was read before are read as `kvarn run --pack` reads them.

The oracle is a context that follows the pack, as `Model.context` plans it for the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Auto
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import build_pack
from kvarn.runtime.serving.library import LONG, Lease, Library

from ...reading import ids_of
from .conftest import Make

N_CTX, N = 16384, LONG + 700
AUTO = ContextRequest(attend=Auto())
EXACT = ContextRequest(attend=Auto(), prefill=kvarn.Exact())


@pytest.fixture(scope="module")
def text(model: Model) -> list[int]:
    return ids_of(model, N)


@pytest.fixture(scope="module")
def question(model: Model, text: list[int]) -> list[int]:
    return [*text, *ids_of(model, 40, seed=1)]


@pytest.fixture(scope="module")
def book(model: Model, text: list[int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packs") / "book"
    build_pack(model, path, text)
    return path


def of_pack(
    model: Model, book: Path, ids: Sequence[int], prefill: kvarn.Prefill | None = None
) -> np.ndarray:
    """The logits of a prompt that follows the pack, as the command line reads it."""
    store = kvarn.Disk(book, read_only=True)
    with model.context(N_CTX, Auto(), store=store, prefill=prefill) as context:
        assert type(context.plan.prefill) is type(prefill or kvarn.SparsePrefill())
        return context.prefill(ids[N:]).copy()


@pytest.fixture(scope="module")
def sparsely(model: Model, book: Path, question: list[int]) -> np.ndarray:
    return of_pack(model, book, question)


@pytest.fixture(scope="module")
def exactly(model: Model, book: Path, question: list[int]) -> np.ndarray:
    return of_pack(model, book, question, kvarn.Exact())


def read(
    library: Library,
    ids: Sequence[int],
    request: ContextRequest = AUTO,
    pack: Path | None = None,
) -> Lease:
    lease = library.open(ids, request, N_CTX, pack)
    lease.context.prefill(ids[lease.cached :])
    return lease


def test_both_ways_differ(sparsely: np.ndarray, exactly: np.ndarray) -> None:
    """Otherwise the tests below would show nothing."""
    assert (sparsely != exactly).any()


@pytest.mark.parametrize("n_bytes", [1 << 30, 0])
def test_about_a_pack(
    make: Make,
    model: Model,
    book: Path,
    question: list[int],
    sparsely: np.ndarray,
    exactly: np.ndarray,
    n_bytes: int,
) -> None:
    """With a folder or without one; what the request says wins."""
    library = make(n_bytes)
    lease = read(library, question, AUTO, book)
    assert lease.cached == N
    np.testing.assert_array_equal(lease.context.logits, sparsely)
    library.release(lease)
    lease = read(library, question, EXACT, book)
    assert lease.cached == N
    np.testing.assert_array_equal(lease.context.logits, exactly)
    library.release(lease)
    again = library.open(question, AUTO, N_CTX, book)
    assert again.cached == len(question) - 1


def test_about_a_pack_of_another_method_without_a_folder(
    make: Make, model: Model, book: Path, question: list[int]
) -> None:
    """Each method opens the pack in place."""
    library = make(0)
    for attend in (Auto(), kvarn.TopK(budget=64), kvarn.Full()):
        lease = read(library, question, ContextRequest(attend=attend), book)
        assert lease.cached == N
        with model.context(N_CTX, attend, store=kvarn.Disk(book, read_only=True)) as context:
            np.testing.assert_array_equal(lease.context.logits, context.prefill(question[N:]))
        library.release(lease)


def test_about_what_the_library_has(
    make: Make,
    model: Model,
    text: list[int],
    question: list[int],
    sparsely: np.ndarray,
    exactly: np.ndarray,
) -> None:
    """Also after a restart; a request for exact reading gets nothing that was read otherwise."""
    library = make()
    library.release(read(library, text))
    lease = read(library, question)
    assert lease.cached == N
    np.testing.assert_array_equal(lease.context.logits, sparsely)
    library.release(lease)
    for made in (library, None):
        library = made or make()
        turn = library.open([*question, 1], AUTO, N_CTX)
        assert turn.cached == len(question)
        library.release(turn)
        lease = read(library, question, EXACT)
        assert lease.cached == (N if made else len(question) - 1)
        np.testing.assert_array_equal(lease.context.logits, exactly)
        library.release(lease)


def test_a_prompt_that_is_asked_again_has_the_same_logits(
    make: Make, question: list[int], sparsely: np.ndarray
) -> None:
    library = make()
    first = read(library, question)
    logits = first.context.logits.copy()
    library.release(first)
    assert first.cached == 0 and (logits != sparsely).any()
    again = read(library, question)
    assert again.cached == len(question) - 1
    np.testing.assert_array_equal(again.context.logits, logits)


def test_what_is_no_question_is_read_exactly(
    make: Make, model: Model, text: list[int], question: list[int], exactly: np.ndarray
) -> None:
    """A beginning that is short, or shorter than four times the rest: a text of its own."""
    library = make()
    library.release(read(library, text[: LONG - 100]))
    lease = read(library, question)
    assert lease.cached == LONG - 100
    np.testing.assert_array_equal(lease.context.logits, exactly)
    library.release(lease)
    longer = [*text, *ids_of(model, N // 4 + 2, seed=3)]
    lease = read(library, longer)
    assert lease.cached == N
    with model.context(N_CTX, Auto()) as context:
        np.testing.assert_array_equal(lease.context.logits, context.prefill(longer))


def test_what_waits_in_memory(
    make: Make, model: Model, text: list[int], question: list[int]
) -> None:
    """Without a folder, a first prompt is read exactly, and questions sparsely after its chunk."""
    library = make(0)
    lease = read(library, text)
    with model.context(N_CTX, Auto()) as context:
        np.testing.assert_array_equal(lease.context.logits, context.prefill(text))
    library.release(lease)
    long_question = [*text, *ids_of(model, 700, seed=1)]
    lease = read(library, long_question)
    assert lease.cached == N
    with model.context(N_CTX, Auto(), prefill=kvarn.SparsePrefill(from_=N)) as context:
        np.testing.assert_array_equal(lease.context.logits, context.prefill(long_question))
    library.release(lease)
    longer = [*text, *ids_of(model, 3000, seed=3)]
    assert library.open(longer, AUTO, N_CTX).cached == 0
