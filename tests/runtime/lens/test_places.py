"""Places are those where the texts were put; tokens are bytes, or three of them."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvarn.runtime.documents import Document, joined
from kvarn.runtime.lens.passages import Source
from kvarn.runtime.lens.places import place_of
from kvarn.runtime.lens.quotes import AROUND, quotes_of

NOTES, REPORT = "one\ntwo\nthree\n", "first\n\fsecond\n\fthird\n\f"


@pytest.mark.parametrize(
    ("documents", "word", "place"),
    [
        ([NOTES], "one", "line 1"),
        ([NOTES], "three", "line 3"),
        ([REPORT], "third", "page 3"),
        ([NOTES, REPORT], "two", "a, line 2"),
        ([NOTES, REPORT], "first", "b, page 1"),
        ([REPORT, NOTES, REPORT], "second", "a, page 2"),
        ([REPORT, NOTES], "three", "b, line 3"),
    ],
)
def test_places_of_documents(documents: list[str], word: str, place: str, tmp_path) -> None:
    named = [Document(tmp_path, name, text) for name, text in zip("abc", documents)]
    text = joined(named)
    assert place_of(text, text.index(word)) == place


def test_a_line_in_a_document_is_no_name_where_one_document_was_read() -> None:
    text = "A listing:\n==> b <==\nthree\n"
    assert place_of(text, text.index("three")) == "line 3"


def tokenizer(size: int, text: str) -> tuple[Any, list[int]]:
    """One of `size` bytes a token, and the tokens of a text."""
    data = text.encode()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    known = SimpleNamespace(
        piece=lambda id: pieces[id],
        decode=lambda ids: b"".join(pieces[i] for i in ids).decode("utf-8", "replace"),
    )
    return known, list(range(len(pieces)))


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("documents", "word", "place"),
    [
        ([REPORT], "second", "page 2"),  # begins where page 1 ends
        ([REPORT], "first", "page 1"),
        ([NOTES, REPORT], "three", "a, line 3"),  # ends where the next document begins
        ([NOTES, REPORT], "first", "b, page 1"),
        ([NOTES * 9], "three", "line 3"),
    ],
)
def test_a_passage_is_of_one_page_and_its_place_that_of_its_heaviest_token(
    documents: list[str], word: str, place: str, size: int, tmp_path
) -> None:
    text = joined([Document(tmp_path, name, text) for name, text in zip("abc", documents)])
    known, tokens = tokenizer(size, text)
    weights = np.zeros(len(tokens))
    peak = -(-text.index(word) // size)
    weights[peak] = 2
    weights[peak - 1 :: -1][: AROUND + 3] += 0.01  # what stands before it weighs little
    told = quotes_of(known, tokens, weights, [Source(0, len(tokens))])
    assert told[0].place == place
    assert sum(one.share for one in told) == pytest.approx(weights.sum())
    for one in told:
        inner = one.text[size - 1 :][: len(one.text) - 2 * size + 2]  # less parts of tokens
        assert one.text in text and "\f" not in inner.rstrip("\f") and "\n==>" not in inner


def test_passages_end_with_what_was_read_as_one_text() -> None:
    text = "The mill. The wheel."
    known, tokens = tokenizer(1, text)
    weights = np.zeros(len(text))
    weights[[8, 10]] = 1, 2
    sources = [Source(0, 9, "message 1, "), Source(10, 20, "message 3, ")]
    told = quotes_of(known, tokens, weights, sources)
    assert [(one.text, one.place) for one in told] == [
        ("The wheel", "message 3, line 1"),
        ("The mill.", "message 1, line 1"),
    ]


@pytest.mark.parametrize("size", [1, 3])
def test_passages_hold_whole_words(size: int) -> None:
    text = "The miller's daughter carried the grain — wheat’s heaviest — to Kestrelham's mill. " * 3
    known, tokens = tokenizer(size, text)
    for peak in range(len(tokens)):
        weights = np.zeros(len(tokens))
        weights[peak] = 1
        (told,) = quotes_of(known, tokens, weights, [Source(0, len(tokens))])
        assert told.start <= max(0, peak - AROUND) and told.stop >= min(len(tokens), peak + AROUND)
        words = set(re.findall(r"[\w'’]+", told.text))
        assert words <= set(re.findall(r"[\w'’]+", text)), told.text


def test_a_script_without_spaces_is_cut_anywhere() -> None:
    text = "水車小屋のそばに粉屋が立っていた" * 9
    pieces = [letter.encode() for letter in text]
    known: Any = SimpleNamespace(
        piece=lambda id: pieces[id], decode=lambda ids: b"".join(pieces[i] for i in ids).decode()
    )
    weights = np.zeros(len(pieces))
    weights[70] = 1
    (told,) = quotes_of(known, range(len(pieces)), weights, [Source(0, len(pieces))])
    assert (told.start, told.stop) == (70 - AROUND, 70 + AROUND + 1)
