"""The files of a repository, as a hub lists them: JSON that is checked, key by key.

No name from a hub becomes part of a path before it passed here:

repository  [ORGANISATION/]MODEL of letters, digits, `_`, `.` and `-`, as the hub's own rule has it
commit      40 hexadecimal digits
digest      40 (git's id of a blob) or 64 (sha256) hexadecimal digits
file        parts between slashes, in any language; `fault_of` tells what a part must not be
revision    a branch, tag or commit: parts as of a file
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable
from typing import Any, TypeGuard
from urllib.parse import quote

from ...system.text import one_line
from ..errors import HubError
from .ask import Notice, read_whole
from .choose import RepositoryFile

MAX_PART = 230
"""Bytes: file systems take 255, and a file that is being written has a longer name (`new_file`)."""
MAX_NAME = 1000
"""Bytes of a name with all its parts: leaves room for the folder's part of the path."""

MAX_BYTES = 8 << 20
"""Most bytes of a listing: some 30,000 files."""
_MAX_SIZE = 1 << 53
"""Most bytes of a file: what JSON's numbers hold exactly."""

# Stricter than huggingface_hub's `validate_repo_id`, which takes letters of any language.
_REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def list_files(repo: str, revision: str, notice: Notice) -> tuple[str, list[RepositoryFile]]:
    """The commit of a revision, and its files.

    Raises `HubError` for a listing of another shape than the hub's; `HubUnreachable`.
    """
    path = f"api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"
    body = read_whole(repo, path, MAX_BYTES, notice)
    try:
        listing = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _malformed(repo, f"no JSON ({one_line(str(error), 80)})") from None
    if not isinstance(listing, dict):
        raise _malformed(repo, "no object")
    commit, siblings = listing.get("sha"), listing.get("siblings")
    if not is_commit(commit):
        raise _malformed(repo, f"its commit is {_described(commit)}")
    if is_commit(revision) and commit != revision:
        raise _malformed(repo, f"asked for commit {revision} it names {commit}")
    if not isinstance(siblings, list):
        raise _malformed(repo, f"its files are {_described(siblings)}")
    return commit, [_listed(repo, entry) for entry in siblings]


def _listed(repo: str, entry: Any) -> RepositoryFile:
    """A file; of large ones, git has a pointer and LFS the content."""
    if not isinstance(entry, dict):
        raise _malformed(repo, f"a file of it is {_described(entry)}")
    name, size, lfs = entry.get("rfilename"), entry.get("size"), entry.get("lfs")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise _malformed(repo, f"the name of a file is {_described(name)}")
    if type(size) is not int or not 0 <= size <= _MAX_SIZE:
        raise _malformed(repo, f"the size of {_described(name)} is {_described(size)}")
    if lfs is not None and not isinstance(lfs, dict):
        raise _malformed(repo, f"lfs of {_described(name)} is {_described(lfs)}")
    digest = lfs.get("sha256") if lfs else entry.get("blobId")
    if not is_digest(digest) or len(digest) != (64 if lfs else 40):
        raise _malformed(repo, f"the checksum of {_described(name)} is {_described(digest)}")
    return RepositoryFile(name, size, digest)


def _malformed(repo: str, fault: str) -> HubError:
    return HubError(f"the hub's list of the files of {repo} is malformed: {fault}")


def _described(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "missing" if value is None else one_line(repr(value), 80)


def is_commit(text: object) -> TypeGuard[str]:
    """Whether a value is the name of a commit."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def is_digest(text: object) -> TypeGuard[str]:
    """Whether a value is the checksum of a file, as a hub lists it and a cache names its blobs."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_repository(name: str) -> None:
    """Raise `HubError` unless it is the name of a repository."""
    parts = name.split("/")
    sound = (
        _REPOSITORY.fullmatch(name) is not None
        and all(len(part) <= 96 and part.strip(".-") == part for part in parts)
        and not re.search(r"--|\.\.|\.git$", name)
    )
    if not sound:
        raise HubError(
            f"{one_line(repr(name), 80)} is not a repository name: expected ORGANISATION/MODEL"
        )


def check_revision(name: str) -> None:
    """Raise `HubError` unless it is the name of a branch, tag or commit."""
    if fault := fault_of(name) or ("it holds a space" if " " in name else None):
        raise HubError(f"{one_line(repr(name), 80)} cannot be a --revision: {fault}")


def check_files(repo: str, names: Iterable[str]) -> None:
    """Raise `HubError` unless all can be files in one folder, on any disk."""
    seen: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in names:
        if fault := fault_of(name):
            raise HubError(f"{repo} has a file that is not pulled, {_shown(name)}: {fault}")
        key = _key(name)
        if key in seen:
            raise HubError(
                f"{repo} has two files that are one on some disks, {_shown(seen[key])} and "
                f"{_shown(name)}: leave one out with --exclude"
            )
        seen[key] = name
        parts = key.split("/")
        folders |= {"/".join(parts[:n]): name for n in range(1, len(parts))}
    for key in seen.keys() & folders.keys():
        raise HubError(f"{repo} has {_shown(seen[key])} both as a file and as a folder")


def fault_of(name: str) -> str | None:
    """Why a name cannot be a relative path below a folder; None if it can."""
    if any(0xD800 <= ord(c) < 0xE000 for c in name):
        return "it is not valid Unicode"
    if len(name.encode()) > MAX_NAME:
        return f"it is longer than {MAX_NAME} bytes"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f"a part of it is {part!r}"
        if len(part.encode()) > MAX_PART:
            return f"a part of it is longer than {MAX_PART} bytes"
        if "\\" in part or part != part.strip() or not all(map(_prints, part)):
            return "it holds a backslash, a control character, or a space at an end"
        if part.casefold() == ".git":
            return "a .git folder is not part of a repository's files"
    return None


def _prints(character: str) -> bool:
    """Also true for joiners, which languages and emoji need: they move no other characters."""
    return character.isprintable() or character in "\u200c\u200d"


def _key(name: str) -> str:
    """Equal for names that are one file on disks that ignore case or Unicode normal forms."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _shown(name: str) -> str:
    return one_line(repr(name), 80)
