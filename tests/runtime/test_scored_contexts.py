"""Contexts that evict by scores: cuts, drafts, saving, windows, and what they tell."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import Attend
from kvarn.runtime.cache import scored
from kvarn.runtime.context import ContextError
from kvarn.runtime.keep import KeepError
from kvarn.runtime.keep.scored import ScoredKeep
from kvarn.runtime.keep.scored.queries import BLOCK, Queries
from kvarn.runtime.model import Model
from kvarn.runtime.store.disk.checking.verify import verify

from .reading import ids_of
from .test_keep import with_windows

BUDGET, N = 130, 700
SOME = [kvarn.NaCl(BUDGET), kvarn.H2O(BUDGET), kvarn.L2Norm(BUDGET)]


def named(keep: ScoredKeep) -> str:
    return keep.name


def test_memory_for_queries_is_made_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, made = Queries((0, 2), n_heads=2, head_dim=8), 0
    empty = queries._empty

    def counted() -> object:
        nonlocal made
        made += 1
        return empty()

    monkeypatch.setattr(queries, "_empty", counted)
    for position in range(BLOCK + 1):
        for layer in (0, 2):
            queries.put(layer, position, np.ones((1, 2, 8), np.float32), None)
    assert made == 2


@pytest.mark.parametrize("keep", SOME, ids=named)
def test_room_for_all_gives_the_bits_of_all(tiny: Model, keep: ScoredKeep) -> None:
    ids, plain = ids_of(tiny, 600), tiny.context(1024)
    for n_ctx, budget in ((1024, 1024), (2048, 600)):
        context = tiny.context(n_ctx, keep=replace(keep, budget=budget))
        np.testing.assert_array_equal(context.prefill(ids), plain.prefill(ids))
        if budget == 600:  # a prompt that fits
            np.testing.assert_array_equal(context.decode(5), plain.decode(5))
            np.testing.assert_array_equal(context.kept_positions(0), plain.kept_positions(0))
        plain.truncate(0)


@pytest.mark.parametrize("keep", SOME, ids=named)
@pytest.mark.parametrize("every", [0, 70])
def test_a_saved_context_goes_on_bit_for_bit(
    tiny: Model, keep: ScoredKeep, every: int, tmp_path: Path
) -> None:
    """Saved within the prompt, after it, after an eviction, and on."""
    ids, keep = ids_of(tiny, 800), replace(keep, every=every)
    disk, memory = kvarn.Disk(tmp_path / "pack"), tiny.context(1000, keep=keep)
    cuts = (0, 300, 600, 601, 602, 660, 700)
    for first, stop in pairwise(cuts):
        with tiny.context(1000, keep=keep, store=disk) as context:
            assert context.tokens == ids[:first]
            for one in (context, memory):
                if stop <= 600:
                    one.prefill(ids[first:stop])
                else:
                    for token in ids[first:stop]:
                        one.decode(token)
            np.testing.assert_array_equal(context.logits, memory.logits)
            for layer in range(2):
                np.testing.assert_array_equal(
                    context.kept_positions(layer), memory.kept_positions(layer)
                )
    assert verify(tmp_path / "pack") == []


def test_a_pack_of_other_options_is_refused(tiny: Model, tmp_path: Path) -> None:
    disk = kvarn.Disk(tmp_path / "pack")
    with tiny.context(1000, keep=kvarn.NaCl(BUDGET), store=disk) as context:
        context.prefill(ids_of(tiny, 50))
    for other in (
        kvarn.NaCl(BUDGET, random="none"), kvarn.TOVA(BUDGET), kvarn.NaCl(BUDGET, every=9),
        kvarn.NaCl(BUDGET + 1),
    ):  # fmt: skip
        with pytest.raises(kvarn.KvarnError, match="it was made to keep at most 130 tokens"):
            tiny.context(1000, keep=other, store=disk)


@pytest.mark.parametrize("windows", [(24, None), (None, 700), (24, 48)])
def test_layers_with_windows_are_left_alone(tiny: Model, windows, tmp_path: Path) -> None:
    model, ids = with_windows(tiny, *windows), ids_of(tiny, 600)
    store = kvarn.Disk(tmp_path / "pack")
    with model.context(1000, keep=kvarn.NaCl(BUDGET), store=store) as context:
        plain = model.context(1000).prefill(ids)
        assert np.abs(context.prefill(ids) - plain).max() < 2e-3 * np.abs(plain).max()
        context.decode(1)
    with model.context(1000, keep=kvarn.NaCl(BUDGET), store=store) as context:
        context.decode(2)
        for layer, window in enumerate(windows):
            kept = context.kept_positions(layer)
            assert kept.shape[1] == (min(602, window) if window else BUDGET + 2)
            if window:
                assert set(kept[0].tolist()) == set(range(602 - kept.shape[1], 602))


@pytest.mark.parametrize("keep", SOME, ids=named)
@pytest.mark.parametrize("every", [0, 70])
def test_a_draft_evicts_at_the_same_tokens(tiny: Model, keep: ScoredKeep, every: int) -> None:
    """Wrong and right guesses: what is kept is what single tokens keep."""
    ids, keep = ids_of(tiny, 300), replace(keep, every=every)
    drafted, single = (tiny.context(1000, keep=keep) for _ in range(2))
    for context in (drafted, single):
        context.prefill(ids[:200])
    at, rng = 200, np.random.default_rng(0)
    while at < 290:
        room = min(drafted.draft_room, 6)
        assert room >= 0
        draft = ids[at + 1 : at + 1 + room]
        if draft and rng.random() < 0.5:
            draft[rng.integers(len(draft))] = 0
        drafted.decode(ids[at], draft)
        at += 1
        while drafted.reads_ahead(ids[at]):
            drafted.decode(ids[at])
            at += 1
    for token in ids[200:at]:
        single.decode(token)
    if every:
        assert drafted.draft_room < BUDGET + every
    for layer in range(2):
        np.testing.assert_array_equal(drafted.kept_positions(layer), single.kept_positions(layer))


def test_guesses_that_are_wrong_are_not_summed(tiny: Model) -> None:
    """Sums are taken every 512 tokens, and cannot be cut: no pass goes beyond."""
    ids, keep = ids_of(tiny, 800), kvarn.H2O(BUDGET, every=650)
    drafted, single = (tiny.context(1000, keep=keep) for _ in range(2))
    for context in (drafted, single):
        context.prefill(ids[:200])
    for token in ids[200:780]:
        room = min(drafted.draft_room, 6)
        drafted.decode(token, [(token + 1) % 500] * room)
        single.decode(token)
    for one, other in zip(drafted._cache._scored, single._cache._scored, strict=True):
        assert one.n_summed == other.n_summed == 200 + BLOCK
        np.testing.assert_array_equal(one.sums, other.sums)


def test_cuts_end_where_queries_are_gone(tiny: Model) -> None:
    ids = ids_of(tiny, 2000)
    for keep, least in (
        (kvarn.TOVA(BUDGET), 1025), (kvarn.H2O(BUDGET), 1536), (kvarn.L2Norm(BUDGET), 1),
    ):  # fmt: skip
        context = tiny.context(4096, keep=keep)
        context.prefill(ids)
        can = [n for n in range(1, 2000) if context.can_truncate(n)]
        assert can == list(range(least, 2000))
        if least > 1:
            words = f"cut a context of 2000 tokens to 9: queries that keep {keep.name} needs"
            with pytest.raises(ContextError, match=words):
                context.truncate(9)
        context.truncate(1600)
        context.prefill(ids[1600:])
        context.decode(1)
        whole = tiny.context(4096, keep=keep)
        whole.prefill(ids)
        whole.decode(1)
        assert (
            np.mean(context.kept_positions(0) == whole.kept_positions(0)) > 0.95
        )  # read in other pieces
        assert [n for n in range(2002) if context.can_truncate(n)] == [0, 2001]
        context.truncate(0)
        context.prefill(ids[:300])
        assert context.kept_positions(1).tolist() == [list(range(300))] * 2


def test_memory_is_told_and_given_back(tiny: Model) -> None:
    context = tiny.context(8192, keep=kvarn.NaCl("10%"))
    (line,) = context.notices
    assert "keep nacl holds a prompt whole until the first token is generated: " in line
    assert " of queries for 8,192 tokens, then " in line
    context.prefill(ids_of(tiny, 6000))
    whole = context.n_bytes
    context.decode(1)
    figures = context.stats.as_dict()
    assert context.n_bytes == whole // 6
    assert figures["most_kv_bytes"] == whole
    assert figures["most_query_bytes"] > 0
    assert (figures["kept_tokens"], figures["evicted_tokens"]) == (821, 5180)
    assert "kept 821 of 6001 tokens, evicted 5180; held at most " in str(context.stats)
    assert not context._cache._queries.n_bytes
    context.close()
    assert "kept 821 of 6001" in str(context.stats)


def test_a_prompt_that_memory_cannot_hold_is_refused(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = tiny.context(4096, keep=kvarn.TOVA(BUDGET))
    context.prefill(ids_of(tiny, 600))
    monkeypatch.setattr(scored, "available_bytes", lambda: 1000)
    with pytest.raises(kvarn.KvarnError, match=r"whole needs another .* and 1000 B of"):
        context.prefill(ids_of(tiny, 600))
    monkeypatch.undo()
    context.prefill(ids_of(tiny, 600))
    context.decode(1)
    assert context.kept_positions(0).shape == (2, BUDGET + 1)


def test_one_eviction_and_then_it_grows(tiny: Model) -> None:
    context = tiny.context(4096, keep=kvarn.NaCl(BUDGET))
    context.prefill(ids_of(tiny, N))
    for token in range(1, 6):
        context.decode(token)
    context.prefill(ids_of(tiny, 2000))
    context.decode(1)
    assert context.kept_positions(0).shape == (2, BUDGET + 2006)
    figures = context.stats.as_dict()
    assert (figures["kept_tokens"], figures["evicted_tokens"]) == (BUDGET + 2006, N - BUDGET)
    assert figures["kept_in_layers"] == [BUDGET + 2006] * 2


def test_wrong_options_are_one_line() -> None:
    for make, words in (
        (lambda: kvarn.SnapKV(64), "64 tokens leaves nothing to evict beside 64 protected"),
        (lambda: kvarn.SnapKV(100, every=20), "every is 20, fewer than the 64 tokens"),
        (lambda: kvarn.SnapKV(100, pooling=4), "pooling over 4"),
        (lambda: kvarn.H2O(100, every=-1), "h2o: every is -1"),
        (lambda: kvarn.NaCl(100, random="some"), "random is 'some', expected one of scores, un"),
        (lambda: kvarn.NaCl(100, heads="all"), "heads is 'all', expected one of own, same"),
        (lambda: kvarn.NaCl(100, seed=-1), "seed is -1"),
        (lambda: kvarn.KeepRandom(100, seed=-1), "seed is -1"),
    ):
        with pytest.raises(KeepError, match=words) as caught:
            make()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "attend", [kvarn.TopK(30, sink=2, window=8), kvarn.Hash(30, sink=2, window=8)]
)
@pytest.mark.parametrize("keep", [kvarn.NaCl(BUDGET, every=20), kvarn.TOVA(BUDGET)], ids=named)
def test_sparse_attention_chooses_among_what_was_moved(
    tiny: Model, keep: ScoredKeep, attend: Attend
) -> None:
    """An index that is built anew before every token chooses the same; a larger budget is full."""
    ids = ids_of(tiny, 700)
    kept, anew = (tiny.context(1000, attend, keep) for _ in range(2))
    full, all_of_it = (
        tiny.context(1000, one, keep) for one in (kvarn.Full(), replace(attend, budget=900))
    )
    for context in (kept, anew, full, all_of_it):
        context.prefill(ids[:300])
    for token in ids[300:350]:
        for layer in range(2):
            anew.store.changed(layer, 0)
        np.testing.assert_array_equal(kept.decode(token), anew.decode(token))
        np.testing.assert_array_equal(full.decode(token), all_of_it.decode(token))
    assert sum(layer.attended_tokens for layer in kept.stats.layers) > 0


def test_more_than_can_be_chosen_among_is_refused(tiny: Model) -> None:
    context = tiny.context(200, kvarn.TopK(10, sink=2, window=8), kvarn.TOVA(BUDGET))
    context.prefill(ids_of(tiny, 600))
    for _ in range(70):
        context.decode(1)
    with pytest.raises(KeepError, match=r"holds 201 tokens and .* among 200 at most: use a larger"):
        context.decode(1)
