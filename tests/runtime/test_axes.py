"""A method of an axis as users write it, with its options."""

import pytest

from kvarn.runtime.attend import Full, Hash, TopK
from kvarn.runtime.axes import ATTEND_AXIS, PREFILL_AXIS
from kvarn.runtime.prefill import BlocksPrefill, SparsePrefill
from kvarn.system.errors import KvarnError


def test_a_method_names_its_options() -> None:
    assert ATTEND_AXIS.parsed("full", {"probe": 3}) == Full()
    assert ATTEND_AXIS.parsed("hash:bits=64", {"probe": 3}) == Hash(bits=64, probe=3)
    sparse = SparsePrefill(k=1024, from_=0)
    assert PREFILL_AXIS.parsed("sparse:k=1024:from=0", {}) == sparse
    for text in ("blocks:4K:rest=sparse", "blocks:size=4096:rest=sparse"):
        assert PREFILL_AXIS.parsed(text, {}) == BlocksPrefill(4096, rest="sparse")
    flat = TopK(index="flat", sink=8, budget_unit="query-head", budget="6%")
    text = "topk:index=flat:sink=8:budget-unit=query-head"
    assert ATTEND_AXIS.parsed(text, {"budget": "6%"}) == flat


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "dance",
            "unknown method 'dance', expected one of auto, full, hash, magicpig, topk",
        ),
        ("topk:bits=32", "topk:bits=32: method topk has the options budget, .* not 'bits'"),
        ("full:sink=4", "full:sink=4: method full has the options none, not 'sink'"),
        ("hash:bits=many", "hash:bits=many: bits: expected a whole number"),
        ("hash:bits", "hash:bits: bits: expected a whole number"),
        ("topk:index=tree", "index: expected one of flat, sketch, found 'tree'"),
    ],
)
def test_methods_that_there_are_not_are_refused(text: str, expected: str) -> None:
    with pytest.raises(KvarnError, match=expected):
        ATTEND_AXIS.parsed(text, {})
