"""Which names of repositories, revisions and files are taken from a hub."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.convert.errors import HubError
from kvarn.convert.hub.listing import (
    check_files,
    check_repository,
    check_revision,
    fault_of,
    is_commit,
    is_digest,
)

USUAL = (
    "config.json",
    ".gitattributes",
    "model-00001-of-00002.safetensors",
    "Q6_K/big-Q6_K-00001-of-00003.gguf",
    "additional_chat_templates/tool_use.jinja",
    "Model (1) [v2] + more, really.gguf",
    "模型/权重.gguf",
    "Übung.txt",
    "नमस्ते\u200d.json",
    "👨\u200d👩\u200d👧.png",
    "..config",
    "a..b",
    "-",
    "~",
)
REFUSED = (
    "",
    ".",
    "..",
    "/etc/passwd",
    "a/../b",
    "a/./b",
    "a//b",
    "a/",
    "a\\b",
    "a\0",
    "a\nb",
    "\x1b]0;x\x07",
    "a\x7f",
    "a\x85b",
    " a",
    "a ",
    "b/ a/c",
    "\u3000a",
    "\ud800",
    "a\u202eb",
    "a\u2028b",
    "\u200b",
    ".git/config",
    "a/.Git/x",
    "é" * 116,
    "y/" * 500 + "z",
)


@pytest.mark.parametrize("name", USUAL)
def test_names_that_repositories_have(name: str) -> None:
    assert fault_of(name) is None


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_are_refused(name: str) -> None:
    assert fault_of(name)
    with pytest.raises(HubError, match="org/x has a file that is not pulled") as told:
        check_files("org/x", ["config.json", name])
    assert str(told.value).isprintable()


@given(st.text(st.one_of(st.characters(), st.sampled_from("./\\ ~\0")), max_size=40))
def test_what_is_taken_stays_below_its_folder(name: str) -> None:
    if fault_of(name) is not None:
        return
    root = "/srv/models"
    assert os.path.normpath(f"{root}/{name}") == f"{root}/{name}"
    assert Path(root, name).is_relative_to(root) and Path(root, name) != Path(root)
    assert PurePosixPath(name).as_posix() == name
    assert os.fsencode(name).decode() == name and b"\0" not in os.fsencode(name)


@pytest.mark.parametrize("name", ["a/b", "gpt2", "org_1/Model-1.5B-it.v2", "a" * 96])
def test_repositories(name: str) -> None:
    check_repository(name)


@pytest.mark.parametrize(
    "name",
    ["", "a/b/c", "/a", "a/", "../a", "a/..", "a/.", "a b/c", "a/b\n", "a/é", "a--b/c", "a/b.git",
     "a..b/c", "a/-b", "a/b.", "x" * 97, "a/b?c", "a%2fb/c", "\ud800/a", "a\0/b"],
)  # fmt: skip
def test_repositories_that_are_refused(name: str) -> None:
    with pytest.raises(HubError, match="not a repository name"):
        check_repository(name)


def test_revisions() -> None:
    for name in ("main", "refs/pr/1", "v1.0", "feature/x", "a" * 40):
        check_revision(name)
    for name in ("", "..", "../../x", "/x", "a b", "a/", "a\n", "a\0", "\ud800"):
        with pytest.raises(HubError, match="cannot be a --revision"):
            check_revision(name)


def test_commits_and_digests() -> None:
    assert is_commit("0a" * 20) and is_digest("0a" * 20) and is_digest("0a" * 32)
    for value in ("0A" * 20, "0a" * 20 + "\n", "g" * 40, "", None, 5, ["0a" * 20], "٠" * 40):
        assert not is_commit(value) and not is_digest(value)


def test_files_that_would_be_one() -> None:
    for twins in (("README", "readme"), ("\u00c5", "A\u030a"), ("a/B", "A/b"), ("x", "x")):
        with pytest.raises(HubError, match="two files that are one"):
            check_files("org/x", twins)
    with pytest.raises(HubError, match="both as a file and as a folder"):
        check_files("org/x", ["A", "a/b"])
    check_files("org/x", ["a/b", "a/c", "ab"])
