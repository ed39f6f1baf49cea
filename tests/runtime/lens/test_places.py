"""Places are those where the texts were put."""

import pytest

from kvarn.runtime.documents import Document, joined
from kvarn.runtime.lens.places import place_of

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
