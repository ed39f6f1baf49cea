"""The chain against llama.cpp's, and what is drawn against the probabilities."""

import json
import random
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.sampling import Sampler, SamplingError
from kvarn.runtime.sampling.candidates import Candidates, softmax
from kvarn.runtime.sampling.dry import Repetitions
from kvarn.runtime.tokenizer import load_tokenizer

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden.json").read_text(encoding="utf-8"))
TRACES = json.loads((HERE / "traces.json").read_text(encoding="utf-8"))
BREAKERS = json.loads((HERE / "breakers.json").read_text(encoding="utf-8"))
OFF = Sampler(temp=1.0, top_k=0, top_p=1.0, min_p=0.0, dry_sequence_breakers=())


def ours(logits: list[float], recent: list[int], options: dict[str, Any]) -> dict[int, float]:
    options = dict(options)
    if "logit_bias" in options:
        options["logit_bias"] = {int(k): v for k, v in options["logit_bias"].items()}
    state = replace(OFF, **options).start()
    state.accept_all(recent)
    kept = state.candidates(np.array(logits, np.float32))
    return probabilities(kept)


def probabilities(kept: Candidates) -> dict[int, float]:
    pairs = zip(kept.ids.tolist(), softmax(kept.logits).tolist())
    return {token: p for token, p in pairs if p > 0}


def assert_same(ours: dict[int, float], theirs: dict[int, float]) -> None:
    theirs = {token: p for token, p in theirs.items() if p > 0}
    assert ours.keys() == theirs.keys()
    for token, p in theirs.items():
        assert ours[token] == pytest.approx(p, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda c: "+".join(c["options"]) or "none")
def test_keeps_what_llama_cpp_keeps(case: dict[str, Any]) -> None:
    # Oracle: llama.cpp's samplers, through llama_chain.py.
    expected = {int(token): p for token, p in case["kept"].items()}
    assert_same(ours(case["logits"], case["recent"], case["options"]), expected)


def test_keeps_what_an_installed_llama_cpp_keeps() -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    chain = runpy.run_path(str(HERE / "llama_chain.py"))
    rng = random.Random(7)
    for n_vocab in [1, 2, 3, 300, 2000, 2000, 3000, 5000]:
        for _ in range(6):
            case = chain["random_case"](rng, n_vocab)
            # Three decimals make ties in a large vocabulary, whose order llama.cpp leaves open.
            case["logits"] = [rng.gauss(logit, 1.0) for logit in case["logits"]]
            theirs = chain["survivors"](case["logits"], case["recent"], **case["options"])
            assert_same(ours(**case), theirs)


def assert_same_trace(rows: list[list[float]], options: dict[str, Any], steps: Any) -> None:
    """After each token that llama.cpp drew, the same tokens are left, as probable as there."""
    state = replace(OFF, **options).start()
    for logits, step in zip(rows, steps):
        kept = state.candidates(np.array(logits, np.float32))
        expected = {int(token): p for token, p in step["kept"].items()}
        assert_same(probabilities(kept), expected)
        token = step["drawn"]
        index = kept.ids.tolist().index(token)
        steering = state._steering
        assert steering is not None
        steering.record_draw(index, token, float(softmax(kept.logits)[index]))
        state.accept(token)


@pytest.mark.parametrize("case", TRACES)
def test_steers_as_llama_cpp_does(case: dict[str, Any]) -> None:
    # Oracle: llama.cpp's mirostat, mirostat-v2 and adaptive-p, through llama_chain.py.
    assert_same_trace(case["rows"], case["options"], case["steps"])


def test_steers_as_an_installed_llama_cpp_does() -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    chain = runpy.run_path(str(HERE / "llama_chain.py"))
    rng = random.Random(8)
    for n_vocab in [2, 3, 50, 300, 2000]:
        for _ in range(8):
            case = chain["random_trace"](rng, n_vocab)
            case["rows"] = [[rng.gauss(logit, 1.0) for logit in row] for row in case["rows"]]
            assert_same_trace(**case, steps=chain["trace"](case["rows"], **case["options"]))


@pytest.mark.parametrize("case", BREAKERS)
def test_breakers_end_repetitions_as_in_llama_cpp(case: dict[str, Any]) -> None:
    # Oracle: llama.cpp's dry with the vocabulary of the default model.
    tokenizer = load_tokenizer(default_model_path())
    repetitions = Repetitions(Sampler(**case["options"]), tokenizer)
    repetitions.add(case["recent"])
    ids = np.array(case["ids"])
    ours = repetitions.penalise(Candidates(ids, np.zeros(ids.size, np.float32)))
    np.testing.assert_allclose(ours.logits, case["logits"], rtol=1e-5)


@pytest.mark.parametrize(
    "sampler",
    [
        OFF,
        replace(OFF, temp=0.5),
        replace(OFF, top_k=7),
        replace(OFF, top_p=0.7),
        replace(OFF, typical_p=0.6),
        Sampler(),
    ],
)
def test_draws_follow_the_probabilities(sampler: Sampler) -> None:
    logits = np.random.default_rng(3).normal(0, 1.5, 40).astype(np.float32)
    state = replace(sampler, seed=5).start()
    kept = state.candidates(logits)
    n = 3000
    drawn = np.bincount([state.sample(logits) for _ in range(n)], minlength=40)
    assert set(np.flatnonzero(drawn)) <= set(kept.ids)
    expected = softmax(kept.logits) * n
    common = expected >= 5
    chi2 = float(np.sum((drawn[kept.ids] - expected)[common] ** 2 / expected[common]))
    freedom = int(common.sum()) - 1
    # Mean + 4 standard deviations of chi-square: about 1 failure in 10,000 seeds; the seed is set.
    assert chi2 <= freedom + 4 * np.sqrt(2 * freedom) + 1e-9


def test_xtc_removes_the_best_as_often_as_it_says() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    state = replace(OFF, xtc_probability=0.25, xtc_threshold=0.15, seed=9).start()
    n = 6000
    drawn = np.bincount([state.sample(logits) for _ in range(n)], minlength=4)
    # Oracle: three of four draws are of all tokens, one is of the last two.
    expected = n * (0.75 * np.array([0.4, 0.3, 0.2, 0.1]) + 0.25 * np.array([0, 0, 2 / 3, 1 / 3]))
    chi2 = float(np.sum((drawn - expected) ** 2 / expected))
    assert chi2 <= 3 + 4 * np.sqrt(6)


def test_mirostat_holds_the_surprise_near_its_target() -> None:
    # Oracle: the mean of −log₂ p of what is drawn, p before Mirostat, on Zipf's law.
    logits = (-1.1 * np.log(np.arange(2000) + 2)).astype(np.float32)
    surprise = -np.log2(softmax(logits))
    for version in (1, 2):
        state = replace(OFF, mirostat=version, mirostat_tau=3.0, seed=2).start()
        drawn = [state.sample(logits) for _ in range(1500)]
        own = surprise[drawn[500:]].mean()
        free = surprise[[replace(OFF, seed=i).start().sample(logits) for i in range(500)]].mean()
        assert abs(own - 3.0) < 0.5 * abs(free - 3.0)


def test_a_text_that_repeats_itself_is_penalised_anywhere_in_a_long_context() -> None:
    rng = np.random.default_rng(4)
    phrase = [7, 8, 9, 10]
    tokens = [*phrase, 11, *(rng.integers(20, 60, 5000).tolist()), *phrase]
    options = replace(OFF, dry_multiplier=1.0, dry_penalty_last_n=-1)
    state = options.start()
    state.accept_all(tokens)
    logits = np.zeros(100, np.float32)
    kept = state.candidates(logits)
    # Oracle: multiplier · base ^ (repeated − allowed), of the only token that followed.
    assert kept.logits[11] == pytest.approx(-(1.75**2), rel=1e-6)
    assert np.count_nonzero(kept.logits) == 1
    near = replace(options, dry_penalty_last_n=64).start()
    near.accept_all(tokens)
    assert not near.candidates(logits).logits.any()


def test_ignoring_the_end_forbids_its_tokens() -> None:
    tokenizer = load_tokenizer(default_model_path())
    logits = np.zeros(tokenizer.n_vocab, np.float32)
    logits[list(tokenizer.eog_ids)] = 50.0
    for temp in (0.0, 1.0):
        ending = replace(OFF, temp=temp).start(tokenizer).sample(logits)
        going_on = replace(OFF, temp=temp, ignore_eos=True).start(tokenizer).sample(logits)
        assert ending in tokenizer.eog_ids
        assert going_on not in tokenizer.eog_ids
    with pytest.raises(SamplingError, match="tokenizer"):
        Sampler(ignore_eos=True).start()


def test_same_seed_same_tokens() -> None:
    logits = np.random.default_rng(0).normal(0, 1, 500).astype(np.float32)

    def draws(seed: int | None) -> list[int]:
        state = Sampler(seed=seed).start()
        return [state.sample(logits) for _ in range(30)]

    assert draws(11) == draws(11)
    assert draws(11) != draws(12)
    assert draws(None) != draws(None)


def test_a_fresh_seed_can_be_repeated() -> None:
    logits = np.zeros(1000, np.float32)
    first = Sampler(top_k=0).start()
    again = Sampler(top_k=0, seed=first.seed).start()
    assert [first.sample(logits) for _ in range(9)] == [again.sample(logits) for _ in range(9)]


def test_greedy_takes_the_first_of_equals_and_heeds_bias() -> None:
    logits = np.array([0, 3, 1, 3], np.float32)
    assert Sampler(temp=0).start().sample(logits) == 1
    assert Sampler(temp=0, logit_bias={1: -np.inf}).start().sample(logits) == 3
    state = Sampler(temp=0, repeat_penalty=2.0).start()
    state.accept(1)
    assert state.sample(logits) == 3
    assert logits.tolist() == [0, 3, 1, 3]


@pytest.mark.parametrize("temp", [0.0, 0.8])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_without_a_finite_best_are_refused(temp: float, bad: float) -> None:
    logits = np.full(50, -np.inf, np.float32)
    logits[3] = bad
    with pytest.raises(SamplingError, match="highest logit"):
        Sampler(temp=temp).start().sample(logits)


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_nan_anywhere_is_refused(temp: float) -> None:
    logits = np.zeros(50, np.float32)
    logits[30] = np.nan
    with pytest.raises(SamplingError, match="nan"):
        Sampler(temp=temp).start().sample(logits)


def test_forbidden_tokens_never_appear() -> None:
    logits = np.zeros(6, np.float32)
    forbidden = dict.fromkeys(range(5), -np.inf)
    state = Sampler(logit_bias=forbidden).start()
    assert {state.sample(logits) for _ in range(50)} == {5}


def test_logprobs_are_of_the_raw_logits() -> None:
    logits = np.random.default_rng(1).normal(0, 2, 300).astype(np.float32)
    state = Sampler(temp=0.1, logit_bias={5: 100.0}, n_probs=3).start()
    got = state.logprobs(logits, 5)
    exact = logits.astype(np.float64)
    exact -= np.log(np.sum(np.exp(exact)))
    assert got.id == 5
    assert got.logprob == pytest.approx(exact[5], rel=1e-6)
    best = np.argsort(-logits)[:3]
    assert [i for i, _ in got.top] == best.tolist()
    assert [p for _, p in got.top] == pytest.approx(exact[best].tolist(), rel=1e-6)
    assert state.logprobs(logits, 5, n=0).top == ()
