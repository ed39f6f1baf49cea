"""A model that drafts for another: the ids and the law of generation without, and what it reads."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import kvarn
from kvarn.jit.launch.launcher import Stopped
from kvarn.runtime.context import Context
from kvarn.runtime.draft import DraftError, DraftModel
from kvarn.runtime.draft.vocabulary import check_vocabulary
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.sampling import Constraint
from kvarn.runtime.sampling.candidates import softmax
from kvarn.runtime.store import StoreError

GREEDY = kvarn.Sampler(temp=0)
METHODS = {
    "full": kvarn.Full(),
    "topk": kvarn.TopK(budget=16, sink=4, window=16),
    "hash": kvarn.Hash(budget=16, sink=4, window=16),
}
SAMPLERS = {
    "penalised greedy": kvarn.Sampler(temp=0, repeat_penalty=1.3, presence_penalty=0.5),
    "hot": kvarn.Sampler(temp=1, top_k=0, top_p=1, min_p=0, seed=1),
    "dry": kvarn.Sampler(temp=0.7, dry_multiplier=0.8, dry_penalty_last_n=-1, seed=2),
    "xtc": kvarn.Sampler(temp=1, xtc_probability=0.5, xtc_threshold=0.001, seed=3),
    "mirostat": kvarn.Sampler(mirostat=2, seed=4),
    "adaptive": kvarn.Sampler(samplers=["adaptive_p"], adaptive_target=0.1, seed=5),
    "constrained": kvarn.Sampler(temp=1, constraint=Constraint("regex", "[a-z ]{60}"), seed=6),
}

pytestmark = pytest.mark.usefixtures("longest_drafts")


def prompt_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, n).tolist()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 9, 100, 530])
@pytest.mark.parametrize("equal", [True, False])
def test_greedy_ids_are_those_without_a_draft(
    large: Model, small: Model, method: str, n: int, equal: bool
) -> None:
    attend = METHODS[method]
    plain, drafted = large.context(640, attend), large.context(640, attend)
    draft = DraftModel(large if equal else small, max_tokens=7, min_probability=0)
    expected = list(plain.generate_ids(prompt_of(n), 64, GREEDY, False))
    assert list(drafted.generate_ids(prompt_of(n), 64, GREEDY, False, draft)) == expected
    assert drafted.tokens == plain.tokens
    assert 0 < drafted.stats.accepted_tokens <= drafted.stats.drafted_tokens


def test_some_guesses_of_another_model_are_right(large: Model, small: Model) -> None:
    context = large.context(128)
    list(context.generate_ids(prompt_of(9), 64, GREEDY, False, DraftModel(small, 7, 0)))
    assert 0.2 < context.stats.draft_acceptance < 0.8


def test_a_draft_that_equals_the_model_is_always_right(large: Model) -> None:
    context = large.context(128)
    ids = list(context.generate_ids(prompt_of(9), 41, GREEDY, False, DraftModel(large, 7, 0)))
    stats = context.stats
    assert (len(ids), stats.draft_passes) == (41, 5)
    assert stats.accepted_tokens == stats.drafted_tokens == 35
    assert stats.draft_seconds > 0
    assert stats.decode_seconds > stats.passes_seconds


@pytest.mark.parametrize("seed", range(3))
def test_sampled_ids_are_those_without_a_draft(large: Model, small: Model, seed: int) -> None:
    sampler = kvarn.Sampler(temp=1, top_k=3, repeat_penalty=1.1, seed=seed)
    expected = list(large.context(128).generate_ids(prompt_of(9), 64, sampler, False))
    draft = DraftModel(small, 7, 0)
    assert (
        list(large.context(128).generate_ids(prompt_of(9), 64, sampler, False, draft)) == expected
    )


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_draft_that_equals_the_model_draws_what_it_draws(large: Model, name: str) -> None:
    """Also with penalties, and where random numbers decide."""
    context, plain = large.context(128), large.context(128)
    draft, sampler = DraftModel(large, 7, 0), SAMPLERS[name]
    ids = list(context.generate_ids(prompt_of(9), 64, sampler, False, draft))
    assert ids == list(plain.generate_ids(prompt_of(9), 64, sampler, False))
    assert len(set(ids)) > 8
    assert context.stats.accepted_tokens == context.stats.drafted_tokens > 40


def test_sampled_tokens_follow_the_law_of_the_large_model(large: Model, small: Model) -> None:
    """Oracle: the probabilities of all answers of three tokens, from logits without a draft."""
    sampler, prompt = kvarn.Sampler(temp=1, top_k=3, top_p=1, min_p=0), prompt_of(9)
    context, law = large.context(64), {(): 1.0}
    context.prefill(prompt)
    for _ in range(3):
        longer = {}
        for ids, share in law.items():
            context.truncate(len(prompt))
            for token in ids:
                context.decode(token)
            kept = sampler.start().candidates(context.logits)
            for token, p in zip(kept.ids.tolist(), softmax(kept.logits).tolist()):
                longer[*ids, token] = share * p
        law = longer
    draft, n, drawn = DraftModel(small, 7, 0), 1500, Counter[tuple[int, ...]]()
    for seed in range(n):
        context.truncate(len(prompt))
        state = replace(sampler, seed=seed)
        drawn[tuple(context.generate_ids((), 3, state, False, draft))] += 1
    assert context.stats.accepted_tokens > 100
    assert drawn.keys() <= law.keys()
    common = [ids for ids in law if law[ids] * n >= 5]
    chi2 = sum((drawn[ids] - law[ids] * n) ** 2 / (law[ids] * n) for ids in common)
    # Mean + 4 standard deviations of chi-square.
    assert len(common) > 8
    assert chi2 <= len(common) + 4 * np.sqrt(2 * len(common))


def n_read(context: Context) -> int:
    return context.stats.prefilled_tokens + context.stats.decoded_tokens


def test_what_the_draft_has_read_it_does_not_read_again(large: Model) -> None:
    draft, context = DraftModel(large, 7, 0), large.context(256)
    list(context.generate_ids(prompt_of(100), 20, GREEDY, False, draft))
    guessing = context_of(draft)
    before = n_read(guessing)
    assert 100 + 18 <= before < 100 + 19 + 7
    list(context.generate_ids(prompt_of(30, 1), 20, GREEDY, False, draft))
    assert context_of(draft) is guessing
    assert 30 + 18 <= n_read(guessing) - before < 30 + 19 + 14
    assert guessing.tokens[:149] == context.tokens[:149]
    context.truncate(50)
    before = n_read(guessing)
    again = list(context.generate_ids(prompt_of(9, 2), 20, GREEDY, False, draft))
    plain = large.context(256)
    assert again == list(plain.generate_ids(context.tokens[:59], 20, GREEDY, False))
    assert 9 + 18 <= n_read(guessing) - before < 9 + 19 + 14


def context_of(draft: DraftModel) -> Context:
    assert draft._guessing is not None
    context = draft._guessing.context
    assert isinstance(context, Context)
    return context


def test_generations_that_take_turns_get_what_each_would_alone(large: Model) -> None:
    draft = DraftModel(large, 3, 0)
    prompts = [prompt_of(20, seed) for seed in range(2)]
    expected = [list(large.context(64).generate_ids(p, 30, GREEDY, False)) for p in prompts]
    turns = [large.context(64).generate_ids(p, 30, GREEDY, False, draft) for p in prompts]
    assert [list(ids) for ids in zip(*zip(*turns, strict=True), strict=True)] == expected


def test_a_draft_ends_before_a_token_that_is_not_likely(large: Model, small: Model) -> None:
    """Oracle: the softmax of the smaller model's logits in float64, along its greedy text."""
    tokens, shares, text = prompt_of(20), [], []
    context, alone = large.context(64), small.context(64)
    context.prefill(tokens)
    logits = alone.prefill(tokens)
    for _ in range(7):
        text.append(int(logits.argmax()))
        weights = np.exp(logits.astype(np.float64) - logits.max())
        shares.append(1 / weights.sum())
        logits = alone.decode(text[-1])
    for least in (0, 1, *(share * factor for share in shares for factor in (0.99, 1.01))):
        draft = DraftModel(small, 7, least).start(context, GREEDY.start()).propose(tokens, 7)
        n = next((i for i in range(7) if shares[i] < least), 7)
        assert draft == text[:n]


def test_guesses_end_with_what_the_draft_was_trained_on(
    large: Model, small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(small, "config", replace(small.config, n_ctx_train=24))
    monkeypatch.setattr(small, "tell", told.append)
    plain, drafted = large.context(64), large.context(64)
    expected = list(plain.generate_ids(prompt_of(9), 40, GREEDY, False))
    draft = DraftModel(small, 7, 0)
    assert list(drafted.generate_ids(prompt_of(9), 40, GREEDY, False, draft)) == expected
    assert len(context_of(draft).tokens) == 24
    assert told == ["the draft small.gguf guesses up to token 24, the most it was trained on"]
    assert list(drafted.generate_ids((), 10, GREEDY, False, draft)) == list(
        plain.generate_ids((), 10, GREEDY, False)
    )


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"max_tokens": 32}, {"min_probability": 2}])
def test_options_out_of_range_are_refused(tiny: Model, options: dict[str, int]) -> None:
    with pytest.raises(DraftError, match=f"drafting: {next(iter(options))} is .*, expected "):
        DraftModel(tiny, **options)


def test_another_vocabulary_is_refused_before_the_prompt_is_read(tiny: Model) -> None:
    context = tiny.context(64)
    with pytest.raises(DraftError, match=r"has another vocabulary than tiny\.gguf: found "):
        context.generation([1, 2, 3], draft=DraftModel(load()))
    assert not context.tokens


def test_memory_is_taken_before_the_prompt_is_read(
    large: Model, small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(n_ctx: int) -> Context:
        raise StoreError(f"no room for {n_ctx} tokens")

    context, draft = large.context(64), DraftModel(small)
    monkeypatch.setattr(small, "context", refuse)
    with pytest.raises(StoreError, match="no room for 64 tokens"):
        context.generation([1, 2, 3], draft=draft)
    assert not context.tokens


def file_of(texts: list[str], types: object = None) -> SimpleNamespace:
    types = np.array(types, np.int32) if isinstance(types, list) else types
    keys = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": types}
    return SimpleNamespace(path=Path(f"{len(texts)}.gguf"), metadata=keys)


def test_vocabularies_may_differ_by_what_pads_them() -> None:
    two, padded = file_of(["a", "b"], [1, 1]), file_of(["a", "b", "[PAD]"], [1, 1, 5])
    for draft, model in ((two, two), (two, padded), (padded, two)):
        check_vocabulary(draft, model)
    for other, found in (
        (file_of(["a", "b", "c"], [1, 1, 1]), "found 3 tokens, expected 2"),
        (file_of(["a", "b", "c"]), "found 3 tokens, expected 2"),
        (file_of(["a", "b", "c"], 5), "found 3 tokens, expected 2"),
        (file_of(["a", "c"]), "found 'c' as token 1, expected 'b'"),
    ):
        with pytest.raises(DraftError, match=found):
            check_vocabulary(other, two)
    with pytest.raises(DraftError, match=r"of all tokens: none\.gguf has none"):
        check_vocabulary(SimpleNamespace(path=Path("none.gguf"), metadata={}), two)


@pytest.mark.parametrize("n_prompt", [1, 64, 65, 500])
def test_a_prompt_is_read_in_slices(large: Model, small: Model, n_prompt: int) -> None:
    """None longer than asked for; then the beginning of a generation reads nothing more."""
    draft = DraftModel(small)
    context = large.context(640)
    context.prefill(prompt_of(n_prompt))
    draft.prepare(context)
    assert draft._guessing is not None
    guesses, n_read = draft._guessing.context, 0
    is_read = False
    while not is_read:
        is_read = draft.read_some(context, 64)
        assert 0 < len(guesses.tokens) - n_read <= 64
        n_read = len(guesses.tokens)
    assert guesses.tokens == context.tokens and draft.n_shared(prompt_of(n_prompt)) == n_prompt
    passes = guesses.stats.prefilled_tokens, guesses.stats.decoded_tokens
    draft.start(context, GREEDY.start(None))
    assert (guesses.stats.prefilled_tokens, guesses.stats.decoded_tokens) == passes


def test_a_flag_stops_what_a_draft_reads(large: Model, small: Model) -> None:
    flag, draft, context = np.zeros(1, np.int64), DraftModel(small), large.context(640)
    context.prefill(prompt_of(300))
    draft.prepare(context)
    draft.stop_at(flag.ctypes.data)
    flag[0] = 1
    with pytest.raises(Stopped):
        draft.read_some(context, 300)
    draft.stop_at(0)
    assert draft.read_some(context, 300)


def test_siblings_learn_together_and_read_apart(large: Model, small: Model) -> None:
    draft = DraftModel(small)
    context = large.context(640)
    context.prefill(prompt_of(30))
    draft.prepare(context)
    other = draft.sibling()
    other.prepare(context)
    assert other.read_some(context, 64) and other._lengths is draft._lengths
    assert (other.n_shared(prompt_of(30)), draft.n_shared(prompt_of(30))) == (30, 0)
