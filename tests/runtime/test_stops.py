"""Stop strings against a search in the whole text."""

from hypothesis import example, given
from hypothesis import strategies as st

from kvarn.runtime.stops import StopMatcher

# Few letters, so that stop strings overlap, nest and almost match.
WORDS = st.text("ab\n", max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text up to the stop string that is complete after the fewest characters."""
    for end in range(1, len(text) + 1):
        starts = [end - len(s) for s in stops if s and text[:end].endswith(s)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(st.lists(WORDS, max_size=20), st.lists(WORDS, max_size=4))
@example(["ab", "ab"], ["bab", "abab"])
@example(["aab"], ["ab", "aab"])
def test_equals_a_search_in_the_whole_text(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join([*map(matcher.push, pieces), matcher.flush()])
    assert (shown, bool(matcher.stop)) == naive("".join(pieces), stops)


@given(st.lists(WORDS, max_size=20), st.lists(WORDS, max_size=4))
def test_holds_back_only_what_may_become_a_stop(pieces: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    text = shown = ""
    for piece in pieces:
        shown += matcher.push(piece)
        text += piece
        if matcher.stop:
            assert matcher.flush() == ""
            return
        ends = [text[len(text) - n :] for n in range(len(text) + 1)]
        possible = [end for end in ends if any(s.startswith(end) and s for s in stops)]
        assert text[len(shown) :] == max(possible, key=len, default="")


def test_stays_stopped() -> None:
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("one\n") == "one" and not matcher.stop
    assert matcher.push("\ntwo") == "" and matcher.stop == "\n\n"
    assert matcher.push("three") == ""
    assert matcher.flush() == ""


def test_nothing_to_stop_at_holds_nothing() -> None:
    matcher = StopMatcher(["", ""])
    assert matcher.push("text") == "text"
    assert matcher.flush() == ""
