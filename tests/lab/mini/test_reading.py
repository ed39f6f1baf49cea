"""What encoders learn from: contexts that hold what is asked behind them."""

from itertools import islice

import pytest

pytest.importorskip("tokenizers", reason="only needed to train: pip install tokenizers")

from kvarn.evals.tasks import Plain
from lab.mini.texts.reading import contexts


def test_the_same_seed_gives_the_same_contexts() -> None:
    first, again, other = (list(islice(contexts(Plain(), seed), 5)) for seed in (1, 1, 2))
    assert first == again != other


def test_replies_stand_after_the_facts_that_they_repeat() -> None:
    found = 0
    for text in islice(contexts(Plain(), 7), 30):
        asked = text.rfind("\nQuestion: what is the number of the ")
        if asked >= 0:
            thing = text[asked:].split(" of the ", 1)[1].split("?")[0]
            number = text[asked:].split("Answer: ")[1][:5]
            told = text[:asked].rfind(number)
            assert told >= 0 and thing in text[:asked]
            found += 1
    assert found > 3
