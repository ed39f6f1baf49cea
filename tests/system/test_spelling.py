"""Options in messages are written as the users of this process write them."""

import pytest

from kvarn.system.children import run_helpers
from kvarn.system.spelling import as_argument, as_flag, spell, spelt, use_spelling

WORDS = ("ctx", "keep_budget", "prefill", "store", "kv_type")


@pytest.mark.parametrize(
    ("spelling", "written"),
    [
        (as_flag, ["--ctx", "--keep-budget", "--prefill", "--kv", "--kv-type"]),
        (
            as_argument,
            ["n_ctx", "budget of keep", "prefill", "store", "store type"],
        ),
        (str, list(WORDS)),
    ],
)
def test_each_front_end_has_its_spelling(spelling, written: list[str]) -> None:
    with use_spelling(spelling):
        assert [spelt(word) for word in WORDS] == written
    assert spelt("ctx") == "n_ctx"  # this process is Python's


def test_a_block_ends_with_the_spelling_before_it() -> None:
    before = spell(str)
    with pytest.raises(ValueError, match="ctx"), use_spelling(as_flag):
        raise ValueError(spelt("ctx"))
    assert spelt("ctx") == "ctx"
    assert spell(before) is str


def tell(word: str, say) -> None:
    say(spelt(word))


def test_processes_that_share_the_work_write_options_alike() -> None:
    told: list[str] = []
    with use_spelling(as_flag), run_helpers(1, tell, "ctx", told.append):
        pass
    assert told == ["--ctx"]
