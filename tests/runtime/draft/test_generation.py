"""Generation with a draft against generation without: the same ids, states and endings."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

import kvarn
from kvarn.models.passes.transformer import Transformer
from kvarn.runtime.context import Context
from kvarn.runtime.context.reading.prompt import CHUNK, ContextError
from kvarn.runtime.draft import Draft, Drafter, Ngram
from kvarn.runtime.draft.base import MOST_TOKENS
from kvarn.runtime.draft.pace import Pace
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model

GREEDY = kvarn.Sampler(temp=0)
PENALISED = kvarn.Sampler(temp=0.9, seed=3, repeat_penalty=1.3, presence_penalty=0.2)
SAMPLERS = {
    "greedy": GREEDY,
    "penalised greedy": kvarn.Sampler(temp=0, repeat_penalty=1.2, frequency_penalty=0.1),
    "default": kvarn.Sampler(seed=1),
    "hot": kvarn.Sampler(temp=1.5, top_k=0, top_p=1, min_p=0, seed=2),
    "penalised": PENALISED,
    "typical": kvarn.Sampler(typical_p=0.7, seed=4),
}


@dataclass(frozen=True)
class Told(Draft):
    """Drafts that know what comes, and are wrong at every `wrong`-th token (0: never)."""

    text: list[int]
    wrong: int = 0
    length: int = 7
    asked: list[int] = field(default_factory=list)

    def start(self, context: Context, sampler: object) -> "Teller":
        return Teller(self)


class Teller(Drafter):
    def __init__(self, told: Told) -> None:
        self.told = told
        self.first: int | None = None

    def propose(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        told = self.told
        told.asked.append(n)
        if self.first is None:
            self.first = len(tokens) - 1
        known = len(tokens) - self.first
        draft = told.text[known : known + min(n, told.length)]
        if told.wrong:
            for i in range(len(draft)):
                if (known + i) % told.wrong == 0:
                    draft[i] = (draft[i] + 1) % 512
        return draft


@pytest.fixture(autouse=True)
def passes_cost_what_they_usually_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes take while other tests compute would decide how much is drafted."""
    monkeypatch.setattr(Pace, "record", lambda *_: None)


@pytest.fixture(scope="module")
def mini() -> Model:
    return load()


def prompt_of(model: Model, n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.config.n_vocab, n).tolist()


def run(
    context: Context,
    prompt: list[int],
    draft: Draft | None,
    sampler: kvarn.Sampler = GREEDY,
    max_tokens: int | None = 40,
    stop_at_eos: bool = False,
) -> tuple[list[int], list[int], str | None]:
    """Ids, the number of tokens in the context as each came, and why it ended."""
    generation = context.generation(prompt, max_tokens, sampler, draft=draft)
    ids, held = [], []
    for token in generation.ids(stop_at_eos):
        ids.append(token)
        held.append(len(context.tokens))
    return ids, held, generation.finish


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("wrong", [0, 3, 1])
def test_ids_are_those_without_a_draft(tiny: Model, name: str, wrong: int) -> None:
    prompt, sampler = prompt_of(tiny, 9), SAMPLERS[name]
    plain, drafted = tiny.context(64), tiny.context(64)
    expected = run(plain, prompt, None, sampler)
    assert run(drafted, prompt, Told(expected[0], wrong), sampler) == expected
    assert drafted.tokens == plain.tokens
    stats = drafted.stats
    assert stats.decoded_tokens == plain.stats.decoded_tokens == 39
    if wrong == 0:
        assert (stats.draft_passes, stats.accepted_tokens) == (5, 34)
    if wrong == 1:
        assert stats.accepted_tokens == 0 < stats.drafted_tokens


def test_the_default_model_says_with_ngrams_what_it_says_without(mini: Model) -> None:
    """Its weights are Q8_0, so activations are rounded to int8, which makes rounding large."""
    prompt = mini.tokenizer.encode("The old mill stood by the river. " * 4 + "The old mill")
    context, single = mini.context(512), mini.context(512)
    expected = run(single, prompt, None, max_tokens=200)
    assert run(context, prompt, Ngram(), max_tokens=200) == expected
    assert context.stats.draft_acceptance > 0.5
    assert context.stats.tokens_per_draft_pass > 4


def test_logits_read_ahead_are_those_of_single_tokens(tiny: Model) -> None:
    ids = prompt_of(tiny, 30)
    ahead, single = tiny.context(64), tiny.context(64)
    ahead.prefill(ids[:10])
    single.prefill(ids[:10])
    for i, token in enumerate(ids[10:], 10):
        expected = single.decode(token)
        assert ahead.reads_ahead(token) == (i > 10)
        read_logits = ahead.decode(token, ids[11:] if i == 10 else ())
        np.testing.assert_array_equal(read_logits, expected)
        assert ahead.tokens == single.tokens == ids[: i + 1]


def test_a_wrong_guess_leaves_no_trace(tiny: Model) -> None:
    ids = prompt_of(tiny, 30)
    context, other = tiny.context(64), tiny.context(64)
    for reader in (context, other):
        reader.prefill(ids[:19])
    other.decode(ids[19])
    context.decode(ids[19], [ids[20] ^ 1, 5, 6, 7])
    np.testing.assert_array_equal(context.decode(ids[20]), other.decode(ids[20]))
    assert not any(context.reads_ahead(token) for token in (5, 6, 7))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_read_guessed_and_cut_the_state_is_that_of_its_tokens(
    tiny: Model, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    context, tokens = tiny.context(64), [1]
    context.prefill(tokens)
    for _ in range(60):
        token, draft = int(rng.integers(0, 2)), rng.integers(0, 2, rng.integers(0, 6)).tolist()
        if len(tokens) > 40 or rng.random() < 0.1:
            tokens = tokens[: rng.integers(1, len(tokens) + 1)]
            context.truncate(len(tokens))
        else:
            context.decode(token, draft)
            tokens = [*tokens, token]
        assert context.tokens == tokens
        expected = tiny.context(64).prefill(tokens)
        assert np.abs(context.logits - expected).max() < 2e-3 * np.abs(expected).max()
    assert context.stats.accepted_tokens > 5


@pytest.mark.parametrize("forget", ["cut", "read"])
def test_reading_on_and_cutting_back_forget_the_draft(tiny: Model, forget: str) -> None:
    ids = prompt_of(tiny, 12)
    context = tiny.context(64)
    context.prefill(ids[:10])
    context.decode(ids[10], [1, 2, 3])
    if forget == "cut":
        context.truncate(5)
    else:
        context.prefill([ids[11]])
    assert not context.reads_ahead(1)
    other = tiny.context(64)
    expected = other.prefill(context.tokens)
    assert np.abs(context.logits - expected).max() < 2e-3 * np.abs(expected).max()


def test_an_end_inside_the_draft(tiny: Model) -> None:
    eos = tiny.tokenizer.eos_id
    assert eos is not None
    sampler = kvarn.Sampler(temp=1.5, seed=14, logit_bias={eos: 2.5})
    plain, drafted = tiny.context(64), tiny.context(64)
    expected = run(plain, [1, 2, 3], None, sampler, None, stop_at_eos=True)
    assert expected[2] == "eos"
    assert len(expected[0]) > 3
    told = Told([*expected[0], eos, 9, 9, 9, 9], length=31)
    assert run(drafted, [1, 2, 3], told, sampler, None, stop_at_eos=True) == expected
    assert drafted.tokens == plain.tokens


def test_the_last_token_and_the_end_of_the_context_bound_drafts(tiny: Model) -> None:
    known = run(tiny.context(64), [1, 2, 3], None)[0]
    told = Told(known, length=31)
    assert run(tiny.context(64), [1, 2, 3], told, max_tokens=6)[2] == "length"
    assert told.asked == [4]  # the sixth token is sampled and not read
    told = Told(known, length=31)
    full = tiny.context(16)
    ids, _, finish = run(full, [1, 2, 3], told, max_tokens=None)
    assert (ids, finish) == (known[:14], "context")
    assert told.asked == [12]
    assert len(full.tokens) == 16


def test_passes_end_with_the_chunk(tiny: Model) -> None:
    prompt = prompt_of(tiny, CHUNK - 5)
    plain = run(tiny.context(600), prompt, None)
    told = Told(plain[0], length=10)
    assert run(tiny.context(600), prompt, told) == plain
    # Up to the last token but one, that token alone, and from there on as many as a pass reads.
    assert told.asked[:3] == [3, 0, Transformer.FEW - 1]


def test_text_and_stop_strings_are_those_without_a_draft(tiny: Model) -> None:
    prompt = prompt_of(tiny, 9)
    told = Told(run(tiny.context(64), prompt, None)[0])
    pieces = list(tiny.context(64).generate(prompt, 40, GREEDY))
    assert list(tiny.context(64).generate(prompt, 40, GREEDY, draft=told)) == pieces
    stop = "".join(pieces)[9:12]
    plain, drafted = tiny.context(128), tiny.context(128)
    expected = list(plain.generate(prompt, 40, GREEDY, [stop]))
    assert list(drafted.generate(prompt, 40, GREEDY, [stop], told)) == expected
    assert drafted.tokens == plain.tokens
    # What was read ahead is forgotten when the next prompt comes.
    again = drafted.generate_ids([7, 8], 10, GREEDY, draft=Ngram())
    assert list(again) == list(plain.generate_ids([7, 8], 10, GREEDY))


def test_bad_drafts_are_refused_and_change_nothing(tiny: Model) -> None:
    context = tiny.context(16)
    context.prefill([1] * 10)
    for draft, message in (([512], "outside the vocabulary"), ([1] * 6, "do not fit")):
        with pytest.raises(ContextError, match=message):
            context.decode(1, draft)
        assert context.tokens == [1] * 10
    long = tiny.context(1024)
    long.prefill([1] * (CHUNK - 4))
    assert long.draft_room == 2
    assert tiny.context(64).draft_room == MOST_TOKENS
    with pytest.raises(ContextError, match="a draft of 3 tokens is too long: there is room for 2"):
        long.decode(1, [1, 1, 1])


def test_statistics_tell_what_drafts_brought(tiny: Model) -> None:
    context = tiny.context(64)
    known = run(tiny.context(64), [1, 2, 3], None)[0]
    assert "draft" not in str(context.stats)
    run(context, [1, 2, 3], Told(known, wrong=10))
    figures = context.stats.as_dict()
    assert figures["draft_acceptance"] == figures["accepted_tokens"] / figures["drafted_tokens"]
    assert f"accepted {figures['accepted_tokens']}" in str(context.stats)
    assert "tokens a pass" in str(context.stats)
