"""The reference of the Python API names what `import kvarn` offers."""

import re

import kvarn
from lab.api_pages import PAGE, page


def names(text: str) -> list[str]:
    return re.findall(r"^## (\w+)$", text, re.MULTILINE)


def test_the_page_has_a_section_for_each_name() -> None:
    written = names(PAGE.read_text(encoding="utf-8"))
    assert names(page()) == written
    assert {"Context", "TopK", "load"} <= {*written} <= {*kvarn.__all__}


def test_docstrings_and_signatures_are_on_the_page() -> None:
    text = page()
    assert str(kvarn.load.__doc__).splitlines()[0] in text
    assert "### Context.prefill" in text and " at 0x" not in text
