"""EPUB books: the chapters in the order in which they are read."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote
from xml.etree import ElementTree

from .archives import Archive
from .kinds import DocumentRefused, Notice
from .markup import text_of as text_of_markup

_LOCKED = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html")


def text_of(data: bytes, name: str, notice: Notice) -> str:
    """The text of all chapters. Raises `DocumentRefused` for books that only their shop's program
    opens, and those that unpack to too much."""
    archive = Archive(data, name)
    root = ElementTree.fromstring(archive.read("META-INF/container.xml"))
    package = _attributes(root, "rootfile", "full-path")[0]
    chapters = _chapters(ElementTree.fromstring(archive.read(package)), package)
    if _LOCKED in archive.names:
        locks = ElementTree.fromstring(archive.read(_LOCKED))
        locked = {unquote(uri) for uri in _attributes(locks, "CipherReference", "URI")}
        if locked & set(chapters):
            raise DocumentRefused(
                f"{name} is an EPUB book with copy protection, which hides its text"
            )
    return "\n".join(text_of_markup(archive.read(chapter), name, notice) for chapter in chapters)


def _chapters(package: ElementTree.Element, path: str) -> list[str]:
    """The members that the spine of a package lists."""
    members = {
        item.get("id"): posixpath.normpath(
            posixpath.join(posixpath.dirname(path), unquote(item.get("href", "")))
        )
        for item in _elements(package, "item")
        if item.get("media-type") in _PAGES
    }
    spine = _attributes(package, "itemref", "idref")
    return [members[reference] for reference in spine if reference in members]


def _attributes(tree: ElementTree.Element, tag: str, attribute: str) -> list[str]:
    """An attribute of all elements of a tag, whatever their namespace."""
    values = (element.get(attribute) for element in _elements(tree, tag))
    return [value for value in values if value is not None]


def _elements(tree: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return [element for element in tree.iter() if element.tag.endswith(f"}}{tag}")]
