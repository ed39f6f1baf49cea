"""What a model that drafts reads, and guesses after it."""

from dataclasses import replace

import numpy as np
import pytest

from kvarn.runtime.draft import DraftModel
from kvarn.runtime.draft.lengths import Lengths
from kvarn.runtime.model import Model

from .test_model import GREEDY, context_of, prompt_of

longest_drafts = pytest.mark.usefixtures("longest_drafts")


@longest_drafts
@pytest.mark.parametrize(
    ("n", "passes", "counted"),
    [
        (1, [1], [1]),
        (2, [2], [2]),
        (4, [4], [4]),
        (5, [5], [5]),
        (16, [16], [16]),
        (17, [17], []),
    ],
)
def test_new_tokens_are_read_in_one_pass_and_long_ones_do_not_count(
    n: int,
    passes: list[int],
    counted: list[int],
    large: Model,
    small: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context, draft, read, added = large.context(64), DraftModel(small, 1, 0), [], []
    context.prefill(tokens := [id % 300 for id in prompt_of(9)])
    drafter = draft.start(context, GREEDY.start())
    guessing = context_of(draft)
    cache = guessing.reader.cache
    begin = cache.begin

    def spy(start: int, n: int, *, prompt: bool) -> None:
        read.append(n)
        begin(start, n, prompt=prompt)

    monkeypatch.setattr(cache, "begin", spy)
    monkeypatch.setattr(drafter.lengths.drafting, "add", lambda n, _: added.append(n))
    assert len(drafter.propose([*tokens, *prompt_of(n, 1)], 1)) == 1
    assert (read, added) == (passes, counted)


@longest_drafts
def test_guesses_follow_what_came_in_place_of_wrong_ones(large: Model, small: Model) -> None:
    """Oracle: the smaller model, which reads the tokens anew."""
    context, draft = large.context(128), DraftModel(small, 7, 0)
    context.prefill(tokens := prompt_of(9))
    drafter = draft.start(context, GREEDY.start())
    for _ in range(4):
        guesses = drafter.propose(tokens, 7)
        expected = small.context(128).generate_ids(tokens, 7, GREEDY, False)
        assert list(expected)[: len(guesses)] == guesses != []
        tokens = [*tokens, *guesses[:2], (guesses[-1] + 1) % 300, 8]


@longest_drafts
def test_after_a_token_that_it_does_not_have_a_draft_guesses_nothing(
    large: Model, small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "config", replace(small.config, n_vocab=300))
    context, draft = large.context(64), DraftModel(small, 7, 0)
    context.prefill(tokens := [id % 300 for id in prompt_of(9)])
    drafter = draft.start(context, GREEDY.start())
    assert drafter.propose(tokens, 7)
    for more in ([300], [300, 5]):
        assert not drafter.propose([*tokens, *more], 7)
    assert max(context_of(draft).tokens) < 300


def test_a_draft_that_is_never_sure_is_soon_asked_rarely(large: Model, small: Model) -> None:
    """Its passes are paid although they give no draft. Oracle: 4 tokens, and 2% of 300."""
    context, draft = large.context(512), DraftModel(small, 7, min_probability=1)
    context.prefill(tokens := prompt_of(9))
    drafter = draft.start(context, GREEDY.start())
    drafter.lengths = Lengths(0.1)
    asked = []
    for token in prompt_of(300, 1):
        asked.append(drafter.lengths.next(7)[1] > 0)
        assert not drafter.propose(tokens := [*tokens, token], 7)
    assert 90 <= sum(asked) <= 101


def test_each_guess_is_weighed_by_its_own_probability(
    large: Model, small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the smaller model's softmax, read anew; the third guess makes the last two not worth
    verifying."""
    weighed: list[list[float]] = []

    def best(most: int, rates: list[float]) -> int:
        weighed.append(list(rates))
        return most if len(rates) < 3 else 1

    context, draft = large.context(64), DraftModel(small, 7, 0)
    context.prefill(tokens := prompt_of(9))
    drafter = draft.start(context, GREEDY.start())
    monkeypatch.setattr(drafter.lengths, "next", lambda longest: (0, longest))
    monkeypatch.setattr(drafter.lengths, "rate_of", lambda probability: probability)
    monkeypatch.setattr(drafter.lengths, "best", best)
    guesses = drafter.propose(tokens, 7)
    other, shares = small.context(64), []
    logits = other.prefill(tokens)
    for _ in range(3):
        weights = np.exp(logits.astype(np.float64) - logits.max())
        shares.append(1 / weights.sum())
        logits = other.decode(int(logits.argmax()))
    assert [len(rates) for rates in weighed] == [1, 2, 3]
    assert weighed[-1] == pytest.approx(shares, rel=1e-3)
    assert guesses == other.tokens[len(tokens) :][:1]
