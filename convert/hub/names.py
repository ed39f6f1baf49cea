"""Which names a hub may give: nothing that it says becomes part of a path before it passed here.

repository  [ORGANISATION/]MODEL of letters, digits, `_`, `.` and `-`, as the hub's own rule has it
commit      40 hexadecimal digits
digest      40 (git's id of a blob) or 64 (sha256) hexadecimal digits
file        parts between slashes, in any language; see `fault_of` for what a part may not be
revision    a branch, tag or commit: parts as of a file
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import TypeGuard

from ...system.text import one_line
from ..errors import HubError

MAX_PART = 230
"""Bytes: file systems take 255, and a file that is being written has a longer name (`new_file`)."""
MAX_NAME = 1000
"""Bytes of a name with all its parts: with the folder it lies in it is to stay a path."""

_REPOSITORY = re.compile(r"(?:[\w.-]+/)?[\w.-]+", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def is_commit(text: object) -> TypeGuard[str]:
    """Whether it is the name of a commit."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def is_digest(text: object) -> TypeGuard[str]:
    """Whether it is the checksum of a file, as a hub lists it and a cache names its blobs."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def check_repository(name: str) -> None:
    """`HubError` for what is not the name of a repository."""
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
    """`HubError` for what is not the name of a branch, tag or commit."""
    if fault := fault_of(name) or ("it holds a space" if " " in name else None):
        raise HubError(f"{one_line(repr(name), 80)} cannot be a --revision: {fault}")


def check_files(repo: str, names: Iterable[str]) -> None:
    """`HubError` unless all can be files in one folder, on any disk."""
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
    """Joiners do not, but languages and emoji need them: they move nothing."""
    return character.isprintable() or character in "\u200c\u200d"


def _key(name: str) -> str:
    """Equal for names that are one file on disks that ignore case or Unicode normal forms."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def _shown(name: str) -> str:
    return one_line(repr(name), 80)
