"""Prompt look-up on given texts: what it proposes, and what it would cost."""

import numpy as np
import pytest

from kvarn.runtime.draft import Drafter, DraftError, Ngram
from kvarn.runtime.draft.ngram import copy_tokens
from kvarn.runtime.draft.pass_times import cost


def random_tokens(n: int, n_vocab: int = 1000, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()


def drafts(drafter: Drafter, prompt: list[int], text: list[int], room: int = 99) -> list[list[int]]:
    """The draft of each pass when `text` is what the model says after `prompt`."""
    tokens, n, out = list(prompt), 0, []
    while n < len(text):
        tokens.append(text[n])
        n += 1
        out.append(list(drafter.propose(tokens, min(room, len(text) - n))))
        for guess in out[-1]:
            if guess != text[n]:
                break
            tokens.append(guess)
            n += 1
    return out


def speed_up(drafter: Drafter, prompt: list[int], text: list[int]) -> float:
    """Tokens by what they cost."""
    return len(text) / sum(cost(len(draft) + 1) for draft in drafts(drafter, prompt, text))


def test_a_copied_text_is_drafted() -> None:
    prompt = random_tokens(2000)
    assert speed_up(Ngram().start(), prompt, prompt[300:1300]) > 2


def test_an_edited_copy_is_taken_up_again_after_each_edit() -> None:
    prompt = random_tokens(2000)
    text = prompt[300:1300]
    text[::50] = random_tokens(20, seed=1)
    assert speed_up(Ngram().start(), prompt, text) > 1.5


def test_text_that_never_repeats_loses_nothing() -> None:
    assert speed_up(Ngram().start(), random_tokens(500), random_tokens(1000, seed=1)) == 1


@pytest.mark.parametrize("n_vocab", [2, 8, 60])
def test_chance_repetitions_lose_less_than_three_percent(n_vocab: int) -> None:
    text = random_tokens(1000, n_vocab, seed=1)
    assert speed_up(Ngram().start(), random_tokens(500, n_vocab), text) > 0.97


def test_options_bound_the_drafts() -> None:
    prompt = random_tokens(500)
    text = prompt[100:300]
    assert max(map(len, drafts(Ngram(max_tokens=3).start(), prompt, text))) == 3
    assert max(map(len, drafts(Ngram().start(), prompt, text, room=2))) == 2
    assert not any(drafts(Ngram().start(), prompt, text, room=0))
    assert any(drafts(Ngram(min_match=5).start(), prompt, text[:30]))
    assert not any(drafts(Ngram(min_match=31).start(), prompt, text[:30]))


def test_a_copy_that_reaches_its_beginning_repeats_itself() -> None:
    assert copy_tokens([7, 1, 2, 3], 1, 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert copy_tokens([7, 1, 2, 3], 1, 2) == [1, 2]
    assert copy_tokens([7], 0, 3) == [7, 7, 7]


@pytest.mark.parametrize("options", [{"max_tokens": 0}, {"max_tokens": 32}, {"min_match": 65}])
def test_options_out_of_range_are_named(options: dict[str, int]) -> None:
    with pytest.raises(DraftError, match=r"m\w+ is \d+, expected 1 to \d+"):
        Ngram(**options)
