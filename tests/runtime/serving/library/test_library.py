"""Contexts of the library begin with what was read, and give what reading it all gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.model import Model
from kvarn.runtime.serving.library import Lease, Library
from kvarn.runtime.store.disk.checking.verify import verify

from ...reading import ids_of
from .conftest import Make

N_CTX = 4096
GREEDY = kvarn.Sampler(temp=0)
PLAIN = ContextRequest()


def read(library: Library, ids: Sequence[int], request: ContextRequest = PLAIN) -> Lease:
    """A lease whose context has read the whole prompt."""
    lease = library.open(ids, request, N_CTX)
    assert lease.context.tokens == list(ids[: lease.cached])
    lease.context.prefill(ids[lease.cached :])
    return lease


def answer(lease: Lease, n: int = 8) -> list[int]:
    return list(lease.context.generate_ids(max_tokens=n, sampler=GREEDY, stop_at_eos=False))


def anew(model: Model, ids: Sequence[int], request: ContextRequest = PLAIN) -> np.ndarray:
    """The logits after a prompt that an empty context has read."""
    with model.context(N_CTX, request.attend, prefill=request.prefill) as context:
        return context.prefill(ids).copy()


def sound(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            assert verify(path) == []


@pytest.mark.parametrize("n", [1, 15, 16, 700, 1024, 1300, 2047, 2048, 2300])
def test_a_prompt_begins_where_it_parts_from_what_was_read(
    make: Make, model: Model, n: int, tmp_path: Path
) -> None:
    library, first = make(), ids_of(model, 2300)
    library.release(read(library, first))
    other = (first[n] + 1) % 512 if n < 2300 else 7
    ids = [*first[:n], other, *ids_of(model, 600, seed=1)]
    lease = read(library, ids)
    assert lease.cached == (n if n >= 16 else 0)
    np.testing.assert_array_equal(lease.context.logits, anew(model, ids))
    library.release(lease)
    again = make().open(first, PLAIN, N_CTX)
    assert again.cached == 2299
    sound(tmp_path / "serve")


def test_the_same_prompt_again_reads_its_last_token(make: Make, model: Model) -> None:
    library, ids = make(), ids_of(model, 1500)
    first = read(library, ids)
    expected = answer(first)
    library.release(first)
    second = read(library, ids)
    assert second.cached == len(ids) - 1
    assert answer(second) == expected
    library.release(second)
    assert library.n_entries == 1  # the second had nothing new


def test_the_next_turn_begins_where_the_last_one_ended(make: Make, model: Model) -> None:
    library, ids = make(), ids_of(model, 1500)
    first = read(library, ids)
    said = answer(first, 20)
    held = len(first.context.tokens)
    library.release(first)
    turn = [*ids, *said, *ids_of(model, 40, seed=2)]
    second = read(library, turn)
    assert second.cached == held
    assert library.n_entries == 1  # it goes on in the same pack
    with model.context(N_CTX) as context:
        context.prefill(ids)
        for token in said[:-1]:
            context.decode(token)
        context.prefill(turn[len(context.tokens) :])
        np.testing.assert_array_equal(second.context.logits, context.logits)


def test_leases_share_what_is_still_being_read(make: Make, model: Model) -> None:
    library, ids = make(), ids_of(model, 2600)
    first = library.open(ids, PLAIN, N_CTX)
    first.context.prefill(ids[:1700])
    others = [read(library, [*ids[:1650], *ids_of(model, 50, seed=seed)]) for seed in range(3)]
    assert [lease.cached for lease in others] == [1650] * 3
    first.context.prefill(ids[1700:])
    np.testing.assert_array_equal(first.context.logits, anew(model, ids))
    for seed, lease in enumerate(others):
        prompt = [*ids[:1650], *ids_of(model, 50, seed=seed)]
        np.testing.assert_array_equal(lease.context.logits, anew(model, prompt))
        assert answer(lease)
        library.release(lease)
    library.release(first)
    assert library.n_entries == 4
    assert not library._leases


def test_a_client_that_goes_away_loses_nothing_it_has_read(make: Make, model: Model) -> None:
    library, ids = make(), ids_of(model, 2000)
    first = library.open(ids, PLAIN, N_CTX)
    first.context.prefill(ids[:1200])
    library.release(first)
    second = make().open(ids, PLAIN, N_CTX)
    assert second.cached == 1200


def test_what_is_read_in_another_way_is_not_shared(make: Make, model: Model) -> None:
    library, ids = make(), ids_of(model, 1500)
    library.release(read(library, ids))
    sparse = ContextRequest(prefill=kvarn.SparsePrefill(k=64, from_=256))
    for request in (ContextRequest(store=kvarn.Ram("q8_0", "q8_0")), sparse):
        lease = read(library, ids, request)
        assert not lease.cached
        library.release(lease)
        assert library.open(ids, request, N_CTX).cached == len(ids) - 1
    np.testing.assert_array_equal(
        read(library, ids, sparse).context.logits, anew(model, ids, sparse)
    )


def test_the_attend_method_makes_no_difference(make: Make, model: Model) -> None:
    library, ids = make(), ids_of(model, 2100)
    library.release(read(library, ids))
    topk = ContextRequest(attend=kvarn.TopK(budget=64))
    lease = read(library, ids, topk)
    assert lease.cached == len(ids) - 1
    with model.context(N_CTX, topk.attend, prefill=kvarn.Exact()) as context:
        context.prefill(ids)
        expected = list(context.generate_ids(max_tokens=8, sampler=GREEDY, stop_at_eos=False))
    assert answer(lease) == expected


def test_contexts_that_evict_share_nothing(make: Make, model: Model) -> None:
    library, ids = make(), ids_of(model, 1500)
    library.release(read(library, ids))
    request = ContextRequest(keep=kvarn.Streaming(budget=256))
    lease = read(library, ids, request)
    assert lease.cached == 0
    library.release(lease)
    assert library.n_entries == 1


def test_what_is_not_to_be_kept_is_removed(make: Make, model: Model, told: list[str]) -> None:
    library, ids = make(), ids_of(model, 1100)
    library.release(read(library, ids), keep=False)
    assert library.n_entries == 0
    assert library.open(ids, PLAIN, N_CTX).cached == 0
    assert not told


def test_ids_are_checked_first(make: Make, model: Model) -> None:
    library = make()
    for ids in ([], [512], [-1], [1] * (N_CTX + 1)):
        with pytest.raises(kvarn.KvarnError):
            library.open(ids, PLAIN, N_CTX)
    assert library.n_entries == 0
