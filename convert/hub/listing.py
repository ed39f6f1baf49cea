"""The files of a repository, as a hub lists them: JSON that is checked, key by key."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from ...system.text import one_line
from ..errors import HubError
from .ask import Notice, read_whole
from .choose import Listed
from .names import MAX_NAME, is_commit, is_digest

MAX_BYTES = 8 << 20
"""Most bytes of a listing: some 30,000 files."""
_MAX_SIZE = 1 << 53
"""Most bytes of a file: what JSON's numbers hold exactly."""


def list_files(repo: str, revision: str, notice: Notice) -> tuple[str, list[Listed]]:
    """The commit that a revision is, and its files.

    Raises `HubError` for a listing of another shape than the hub's; `HubOutOfReach`.
    """
    path = f"api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"
    body = read_whole(repo, path, MAX_BYTES, notice)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _malformed(repo, f"no JSON ({one_line(str(error), 80)})") from None
    if not isinstance(found, dict):
        raise _malformed(repo, "no object")
    commit, siblings = found.get("sha"), found.get("siblings")
    if not is_commit(commit):
        raise _malformed(repo, f"its commit is {_shown(commit)}")
    if is_commit(revision) and commit != revision:
        raise _malformed(repo, f"asked for commit {revision} it names {commit}")
    if not isinstance(siblings, list):
        raise _malformed(repo, f"its files are {_shown(siblings)}")
    return commit, [_listed(repo, entry) for entry in siblings]


def _listed(repo: str, entry: Any) -> Listed:
    """A file; LFS keeps large ones, and git only what points to them."""
    if not isinstance(entry, dict):
        raise _malformed(repo, f"a file of it is {_shown(entry)}")
    name, size, lfs = entry.get("rfilename"), entry.get("size"), entry.get("lfs")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise _malformed(repo, f"the name of a file is {_shown(name)}")
    if type(size) is not int or not 0 <= size <= _MAX_SIZE:
        raise _malformed(repo, f"the size of {_shown(name)} is {_shown(size)}")
    if lfs is not None and not isinstance(lfs, dict):
        raise _malformed(repo, f"lfs of {_shown(name)} is {_shown(lfs)}")
    digest = lfs.get("sha256") if lfs else entry.get("blobId")
    if not is_digest(digest) or len(digest) != (64 if lfs else 40):
        raise _malformed(repo, f"the checksum of {_shown(name)} is {_shown(digest)}")
    return Listed(name, size, digest)


def _malformed(repo: str, fault: str) -> HubError:
    return HubError(f"the hub's list of the files of {repo} is malformed: {fault}")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "missing" if value is None else one_line(repr(value), 80)
