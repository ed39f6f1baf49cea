"""What others wrote, made fit for a terminal."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from kvarn.system.text import lines, one_line, printable, shown

ANYTHING = st.text(st.characters())  # surrogates included
HOSTILE = "\x1b[2J\x1b]0;title\x07\r\n\b\x9b31m\u2028\u202ereversed\ud800\0\x7f"


@given(ANYTHING)
def test_one_line_prints_and_says_what_was_there(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    if text.isprintable():
        assert line == text
    for character in text:
        assert character in line or ascii(character)[1:-1] in line


@given(ANYTHING, st.integers(2, 50))
def test_long_lines_lose_their_middle(text: str, limit: int) -> None:
    line = one_line(text, limit)
    assert len(line) <= 10 * limit + 3  # an escaped character takes up to ten
    if len(text) <= limit:
        assert line == one_line(text)


def test_a_long_message_keeps_its_reason() -> None:
    assert one_line("x" * 10**6 + ": no such file", 100).endswith(": no such file")


@given(ANYTHING)
def test_lines_keep_newlines_and_tabs_alone(text: str) -> None:
    assert lines(text) == "\n".join(
        "\t".join(map(one_line, line.split("\t"))) for line in text.split("\n")
    )


@given(ANYTHING | st.binary(), st.integers(1, 80))
def test_quotes_are_short_and_printable(text: str | bytes, limit: int) -> None:
    quoted = shown(text, limit)
    assert quoted.isprintable()
    assert len(quoted) <= 10 * limit + 4


@given(ANYTHING)
def test_generated_text_controls_nothing(text: str) -> None:
    shown_text = printable(text)
    assert not {c for c in shown_text if unicodedata.category(c) == "Cc"} - set("\n\t")
    # Nothing but controls and marks that reorder is lost.
    assert shown_text == "".join(
        c
        for c in text
        if c in "\n\t"
        or (
            unicodedata.category(c) != "Cc"
            and unicodedata.bidirectional(c) not in ("LRE", "RLE", "LRO", "RLO", "PDF")
            and unicodedata.bidirectional(c) not in ("LRI", "RLI", "FSI", "PDI")
        )
    )


@given(st.integers(0, len(HOSTILE)))
def test_a_sequence_cut_in_two_is_as_harmless(at: int) -> None:
    assert printable(HOSTILE[:at]) + printable(HOSTILE[at:]) == printable(HOSTILE)
    assert printable(HOSTILE) == "[2J]0;title\n31m\u2028reversed\ud800"


def test_what_shapes_words_and_emoji_stays() -> None:
    for text in (
        "می\u200cخواهم",
        "👩\u200d👩\u200d👧",
        "עברית\u200f!",
        "soft\u00adhyphen",
        "a\tb\n",
    ):
        assert printable(text) == text
