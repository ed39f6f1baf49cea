"""Links of all documents lead somewhere: to a file of the checkout, and to a heading in it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .document_commands import ROOT, parts

PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "examples/*.md",
        "lab/**/*.md",
        "evals/**/*.md",
        "tests/*.md",
    )
    for path in ROOT.glob(pattern)
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"#{1,6} +(.*)")
_MENTION = re.compile(r"(?<![\w/.])docs/[\w/-]+\.md")
GGML = "docs/gguf.md"
"""The page of another project that a docstring names as its source."""


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    _, prose = parts(page.read_text(encoding="utf-8"))
    names: list[str] = []
    for line in prose:
        if heading := _HEADING.match(line):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            repeated = names.count(name)
            names.append(name)
            if repeated:
                names.append(f"{name}-{repeated}")
    return set(names)


def broken(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or (bool(anchor) and anchor not in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = "\n".join(parts(page.read_text(encoding="utf-8"))[1])
    links = [link for link in _LINK.findall(prose) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if broken(page, link)] == []


def test_broken_links_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `a` b: c\n\n## [d](e)\n\n## d\n\n    # f\n")
    assert anchors(page) == {"a-b-c", "d", "d-1"}
    assert [broken(page, link) for link in ("#d", "page.md#a-b-c", "#f", "other.md")] == [
        False, False, True, True
    ]  # fmt: skip


def test_pages_that_texts_name_exist() -> None:
    """In messages, docstrings, comments and pages, where they are no links."""
    suffixes = {".py", ".md", ".h", ".c", ".toml", ".json"}
    files = [
        path
        for path in ROOT.rglob("*")
        if path.suffix in suffixes
        and not {".venv", "build", "node_modules"} & set(path.relative_to(ROOT).parts)
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        and path.name != Path(__file__).name
    ]
    assert len(files) > 900
    missing = {
        (str(path.relative_to(ROOT)), page)
        for path in files
        for page in _MENTION.findall(path.read_text(encoding="utf-8", errors="replace"))
        if page != GGML and not (ROOT / page).exists()
    }
    assert missing == set()


def test_the_index_names_all_pages() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in _LINK.findall(index.read_text("utf-8"))}
    pages = {path.resolve() for path in (ROOT / "docs").rglob("*.md")} - {index.resolve()}
    assert pages - linked == set()


def test_packages_list_the_files_that_they_have() -> None:
    """Where the docstring of a package lists its files, it names all of them, and no others."""
    lists = 0
    for package in ROOT.rglob("__init__.py"):
        parts = package.relative_to(ROOT).parts
        if {"build", "tests"} & set(parts) or parts[0].startswith("."):
            continue
        text = ast.get_docstring(ast.parse(package.read_text(encoding="utf-8"))) or ""
        if len(re.findall(r"^ *[\w/]+\.py", text, re.MULTILINE)) < 2:
            continue
        lists += 1
        folder = package.parent
        named = set(re.findall(r"(?<![\w`.])[a-z]\w*\.py\b", text))
        there = {file.name for file in folder.glob("[a-z]*.py")}
        folders = re.findall(r"^ *(\w+)/", text, re.MULTILINE)
        assert named == there, package
        assert all((folder / name).is_dir() for name in folders), package
    assert lists > 15, lists
