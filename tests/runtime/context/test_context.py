"""Contexts: what was read decides what comes next, however it was cut into calls."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.jit import threads
from kvarn.runtime.context.reading.prompt import CHUNK, ContextError
from kvarn.runtime.engine import on_engine
from kvarn.runtime.model import Model
from kvarn.runtime.store import Ram, StoreError
from kvarn.system.values import WrongValue

from ...models import tiny_cases, tiny_models
from ..reading import ids_of

GREEDY = kvarn.Sampler(temp=0)


def test_logits_do_not_depend_on_how_a_prompt_is_cut(tiny: Model) -> None:
    ids = ids_of(tiny, 40)
    whole = tiny.context(64).prefill(ids)
    pieces = tiny.context(64)
    for part in (ids[:1], ids[1:18], ids[18:]):
        cut = pieces.prefill(part)
    one_by_one = tiny.context(64)
    one_by_one.prefill(ids[:1])
    for token in ids[1:]:
        stepped = one_by_one.decode(token)
    np.testing.assert_array_equal(whole, cut)
    # f16 rounding of K and V differs where sums were taken in another order.
    assert np.abs(whole - stepped).max() < 2e-3 * np.abs(whole).max()


def test_chunks_start_at_absolute_multiples(tiny: Model) -> None:
    ids = ids_of(tiny, CHUNK + 40)
    whole = tiny.context(1024).prefill(ids)
    context = tiny.context(1024)
    context.prefill(ids[:CHUNK])
    np.testing.assert_array_equal(context.prefill(ids[CHUNK:]), whole)
    cut, ends = tiny.context(1024), []
    cut.prefill(ids[:100])
    cut.prefill(ids[100:], lambda done, total: ends.append(100 + done))
    assert ends == [CHUNK, CHUNK + 40]


@pytest.mark.parametrize("n", [2, 4, 5, 8, 9, 33, CHUNK])
def test_hidden_states_have_the_same_bits_among_any_number(tiny: Model, n: int) -> None:
    ids = ids_of(tiny, 20 + n)

    def read(n_out: int | None) -> np.ndarray:
        context = tiny.context(1024)
        context.prefill(ids[:20])
        hidden: np.ndarray = on_engine(context._reader.forward, ids[20:], n_out)
        return hidden.copy()

    every = read(None)
    assert len(every) == n
    for n_out in (1, n // 2, n):
        np.testing.assert_array_equal(read(n_out), every[-n_out:])


@pytest.mark.parametrize("first", [0, 1, 31, CHUNK - 1, CHUNK, CHUNK + 39])
def test_logits_from_a_token_on_are_those_of_reading_all(tiny: Model, first: int) -> None:
    ids = ids_of(tiny, CHUNK + 40)
    every = np.concatenate(list(tiny.context(1024).read_all_logits(ids)))
    some = np.concatenate(list(tiny.context(1024).read_all_logits(ids, first)))
    assert every.shape == (len(ids), tiny.config.n_vocab) and len(some) == len(ids) - first
    # A row of logits alone is summed in another order than among others.
    assert np.abs(some - every[first:]).max() < 1e-4 * np.abs(every).max()


def test_cutting_back_and_reading_again_gives_the_same_bits(tiny: Model) -> None:
    ids = ids_of(tiny, 30)
    context = tiny.context(64)
    first = context.prefill(ids).copy()
    context.truncate(10)
    other = context.prefill(ids_of(tiny, 20, seed=1))
    assert not np.array_equal(first, other)
    context.truncate(0)
    np.testing.assert_array_equal(context.prefill(ids), first)
    assert context.tokens == ids


def test_logits_after_a_cut_are_those_of_the_last_token_left(tiny: Model) -> None:
    ids = ids_of(tiny, 12)
    short = tiny.context(64).prefill(ids[:7])
    context = tiny.context(64)
    context.prefill(ids)
    context.truncate(7)
    np.testing.assert_array_equal(context.logits, short)
    assert context.tokens == ids[:7]


@pytest.mark.parametrize("attend", [kvarn.Full(), kvarn.TopK(budget=16, sink=4, window=16)])
def test_a_generated_token_is_read_again_as_it_was(tiny: Model, attend: kvarn.TopK) -> None:
    """After a cut, not as part of a prompt."""
    ids = ids_of(tiny, 1110)
    context = tiny.context(1200, attend)
    context.prefill(ids[:1100])
    logits = [context.decode(token).copy() for token in ids[1100:]]
    for n in (1108, 1101):
        context.truncate(n)
        np.testing.assert_array_equal(context.logits, logits[n - 1101])
    assert context._reader.n_prompt == 1100


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt is empty"),
        ([0, 512], "token id 512 is outside the vocabulary of 512"),
        ([-1], "token id -1"),
        ([1] * 17, "^17 tokens do not fit: the context has room for 16; "),
    ],
)
def test_bad_prompts_are_refused_and_change_nothing(
    tiny: Model, prompt: list[int], message: str
) -> None:
    context = tiny.context(16)
    with pytest.raises(ContextError, match=message):
        context.prefill(prompt)
    assert context.tokens == []
    assert context.prefill([1] * 16).shape == (512,)


def test_a_context_larger_than_memory_says_what_it_needs(tiny: Model) -> None:
    with pytest.raises(
        StoreError, match=r"needs .* TiB of KV cache .* tokens fit; use a smaller n_ctx or"
    ):
        tiny.context(2**31 - 1)


@pytest.mark.parametrize("value", [-1, 1.5, float("nan"), "x", True, 2**31])
def test_numbers_that_count_nothing_are_refused(tiny: Model, value: Any) -> None:
    with pytest.raises(WrongValue, match=r"^n_ctx: expected a whole number from 1 to"):
        tiny.context(value)
    with pytest.raises(WrongValue, match=r"^n_ctx: "):
        tiny.context(0)
    with pytest.raises(WrongValue, match=r"^max_tokens: expected a whole number from 0 to"):
        tiny.context(64).generate("one", max_tokens=value)
    with pytest.raises(WrongValue, match=r"^threads: expected a whole number from 1 to"):
        kvarn.load(tiny.path, threads=value)


def test_text_and_ids_read_the_same(tiny: Model) -> None:
    text = "a tale of two mills"
    context = tiny.context(64)
    by_text = context.prefill(text).copy()
    assert context.tokens == tiny.tokenizer.encode(text, bos=tiny.tokenizer.add_bos)
    np.testing.assert_array_equal(tiny.context(64).prefill(context.tokens), by_text)


def test_bos_stands_only_at_the_beginning(tiny: Model) -> None:
    context = tiny.context(64)
    context.prefill("first")
    assert context.tokens[0] == tiny.tokenizer.bos_id
    context.prefill("second")
    assert context.tokens.count(tiny.tokenizer.bos_id) == 1


def test_generation_takes_the_most_likely_token_each_time(tiny: Model) -> None:
    ids = ids_of(tiny, 9)
    generated = list(tiny.context(64).generate_ids(ids, 12, GREEDY, stop_at_eos=False))
    context = tiny.context(64)
    logits = context.prefill(ids)
    for token in generated:
        assert token == int(logits.argmax())
        logits = context.decode(token)
    assert len(generated) == 12


def test_generation_says_why_it_ended(tiny: Model) -> None:
    ids = ids_of(tiny, 9)
    long = tiny.context(64).generation(ids, 5, GREEDY)
    assert len(list(long.ids(stop_at_eos=False))) == 5
    assert long.finish == "length"
    full = tiny.context(16).generation(ids, None, GREEDY)
    assert len(list(full.ids(stop_at_eos=False))) == 8  # the last one needs no room
    assert full.finish == "context"


OTHERWISE: dict[str, Callable[[kvarn.Context, list[int]], Any]] = {
    "another answer": lambda context, ids: list(context.generate_ids(ids[:2], 2, GREEDY)),
    "a prompt of as many tokens": lambda context, ids: (
        context.truncate(0),  # type: ignore[func-returns-value]
        context.prefill(ids[::-1]),
    ),
    "a cut": lambda context, ids: context.truncate(3),
}


@pytest.mark.parametrize("use", OTHERWISE.values(), ids=OTHERWISE)
def test_an_answer_does_not_go_on_after_its_context_was_used_otherwise(
    tiny: Model, use: Callable[[kvarn.Context, list[int]], Any]
) -> None:
    context, ids = tiny.context(64), ids_of(tiny, 9)
    answer = context.generate_ids(ids, 8, GREEDY)
    next(answer)
    use(context, ids)
    with pytest.raises(ContextError, match="cannot go on with an answer"):
        next(answer)


def test_an_answer_goes_on_after_its_context_was_looked_at(tiny: Model) -> None:
    context, ids = tiny.context(64), ids_of(tiny, 9)
    expected = list(tiny.context(64).generate_ids(ids, 8, GREEDY, stop_at_eos=False))
    told = []
    for token in context.generate_ids(ids, 8, GREEDY, stop_at_eos=False):
        told.append(token)
        context.commit()
        context.mark()
        assert len(context.logits) == tiny.config.n_vocab
    assert told == expected


def test_generation_ends_at_eos(tiny: Model) -> None:
    eos = tiny.tokenizer.eos_id
    sampler = kvarn.Sampler(temp=0, logit_bias={eos: 1e9})
    generation = tiny.context(64).generation([1, 2, 3], 5, sampler)
    assert list(generation.pieces()) == []
    assert generation.finish == "eos"


def test_generation_ends_before_a_stop_string(tiny: Model) -> None:
    ids = ids_of(tiny, 9)
    text = "".join(tiny.context(64).generate(ids, 20, GREEDY))
    stop = text[7:10]
    generation = tiny.context(64).generation(ids, 20, GREEDY, [stop])
    assert "".join(generation.pieces()) == text[: text.index(stop)]
    assert generation.finish == "stop"


def test_a_seed_repeats_a_run(tiny: Model) -> None:
    runs = [
        list(tiny.context(64).generate_ids([5, 6], 16, kvarn.Sampler(temp=1.5, seed=seed)))
        for seed in (7, 7, 8)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_quantised_kv_stays_near_f16(tiny: Model) -> None:
    ids = ids_of(tiny, 100)
    exact = tiny.context(128).prefill(ids)
    spread = exact.std()
    for kind, bound in (("q8_0", 0.05), ("q4_0", 0.5)):
        near = tiny.context(128, store=Ram(kind, kind)).prefill(ids)
        assert 0 < np.abs(near - exact).max() < bound * spread


def test_statistics_count_what_was_done(tiny: Model) -> None:
    context = tiny.context(64)
    list(context.generate_ids([1, 2, 3], 4, GREEDY, stop_at_eos=False))
    stats = context.stats.as_dict()
    assert (stats["prefilled_tokens"], stats["decoded_tokens"]) == (3, 3)
    assert stats["decode_tokens_per_second"] > 0
    assert stats["peak_resident_bytes"] > 1 << 20
    assert "prefill 3 tokens" in str(context.stats)


def test_progress_reports_every_chunk(tiny: Model) -> None:
    seen: list[tuple[int, int]] = []
    tiny.context(2048).prefill([1] * 600, lambda done, total: seen.append((done, total)))
    assert seen == [(512, 600), (600, 600)]


def test_recorded_tokens_have_the_bits_of_tokens_run_layer_by_layer(tiny: Model) -> None:
    """Across the end of a segment (new addresses) and a change of the number of threads."""
    ids = ids_of(tiny, 1040)
    recorded, plain = tiny.context(1100), tiny.context(1100)
    plain._cache._graphs = None
    before, most, seen = on_engine(threads.n_threads), threads.max_threads(), []
    for context in (recorded, plain):
        context.prefill(ids[:1020])
        rows = []
        for i, token in enumerate(ids[1020:]):
            on_engine(threads.set_threads, most if i < 12 else 1)
            rows.append(context.decode(token).copy())
        on_engine(threads.set_threads, before)
        seen.append(np.stack(rows))
    assert recorded._cache.graphs
    np.testing.assert_array_equal(*seen)


def test_which_of_two_sets_of_factors_rotates_is_told(tmp_path: Path) -> None:
    """phi3-long was trained on contexts of 64 tokens."""
    case = next(case for case in tiny_cases.CASES if case.name == "phi3-long")
    tiny_models.write(tmp_path / "m.gguf", case, 1)
    model = kvarn.load(tmp_path / "m.gguf")
    assert model.context(64).notices == ()
    (line,) = model.context(65).notices
    assert "more than 64 tokens, so all positions take the long factors" in line
