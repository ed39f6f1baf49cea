"""Options of sparse methods: what they mean, and which are refused."""

import pytest

import kvarn
from kvarn.runtime.attend import ATTENDS, AttendError, Hash, TopK
from kvarn.system.values import Budget


def test_budgets() -> None:
    assert Budget.parse("1%").tokens(1000) == 10
    assert Budget.parse("0.25%").tokens(1001) == 3
    assert Budget.parse(" 2048 ").tokens(10) == 2048


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": "0%"}, r"expected a share \(more than 0% to 100%\) or a count"),
        ({"budget": "lots"}, "'lots'"),
        ({"budget": 0}, "budget is 0"),
        ({"sink": -1}, "sink is -1"),
        ({"window": 0}, "newest token"),
        ({"budget_unit": "layer"}, "expected one of kv-head, query-head"),
    ],
)
def test_impossible_options_are_refused_in_words(options: dict, words: str) -> None:
    for method in (TopK, Hash):
        with pytest.raises(AttendError, match=words):
            method(**options)


def test_the_methods_own_options() -> None:
    with pytest.raises(AttendError, match="48, expected 32 or 64"):
        Hash(bits=48)
    with pytest.raises(AttendError, match="rerank of hash is 65, expected 1 to 64"):
        Hash(rerank=65)
    with pytest.raises(AttendError, match="index is 'tree'"):
        kvarn.TopK(index="tree")
    assert set(ATTENDS) == {"auto", "full", "topk", "hash", "magicpig"}
