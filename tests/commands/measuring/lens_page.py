"""A page of `kvarn lens`, read by Python's parser and the definition of its numbers."""

import base64
import json
import zlib
from html.parser import HTMLParser


class Page(HTMLParser):
    """The elements of a page, with what stands in them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))
        if tag not in ("meta", "input"):
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for i in self._open[-1:]:
            tag, attributes, before = self.elements[i]
            self.elements[i] = tag, attributes, before + data

    def all(self, tag: str) -> list[str]:
        return [text for name, _, text in self.elements if name == tag]

    @property
    def data(self) -> dict:
        return json.loads(self.all("script")[0])


def unpacked(text: str) -> list[int]:
    """LEB128 in zlib in base64, by the definition."""
    numbers, value, shift = [], 0, 0
    for byte in zlib.decompress(base64.b64decode(text)):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(value)
            value = shift = 0
    return numbers
