"""The places of pulled files: huggingface_hub's cache, or a folder that the user names.

    HF_HUB_CACHE/models--ORGANISATION--MODEL/
      ├─ blobs/DIGEST                the files, by their checksums
      ├─ refs/REVISION               the commit of a branch or tag at the last pull
      └─ snapshots/COMMIT/NAME       a link to the blob

The layout is the library's: kvarn finds what the library pulled, and the other way round. The
library names blobs by ETags as a hub sends them. Here, paths are made only of names, commits and
checksums that passed `listing`.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from ...system.files import FileRefused, write_file
from ..errors import HubError
from .choose import RepositoryFile
from .listing import is_commit, is_digest


class Folder:
    """Files under their own names in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, file: RepositoryFile) -> Path:
        """The path of a file."""
        return self.folder / file.name

    def stored(self, file: RepositoryFile) -> Path | None:
        """The regular file with this name, unchecked; None if it is missing.

        Raises `HubError` for anything else, and for links that lead to other folders.
        """
        return self._regular(self.path(file))

    def target(self, file: RepositoryFile) -> Path:
        """The path to write a missing file to; makes its folder."""
        return _folder_below(self.folder, file.name) / Path(file.name).name

    def publish(self, file: RepositoryFile) -> None:
        """Give a file that was written to its target its name."""

    def remember(self, revision: str) -> None:
        """Note that all files of a revision are there."""

    def expected_digest(self, file: RepositoryFile) -> str:
        """The checksum that the place of a stored file tells; "" if it tells none."""
        return ""

    def _regular(self, path: Path) -> Path | None:
        real = Path(os.path.realpath(path))
        if not real.exists():
            return None
        if not real.is_file() or not any(real.is_relative_to(root) for root in self._roots()):
            raise HubError(f"{path} is not a file in {self._roots()[-1]}: remove it, pull again")
        return real

    def _roots(self) -> tuple[Path, ...]:
        """Folders that a file may lie in, links followed."""
        return (Path(os.path.realpath(self.folder)),)


class Cache(Folder):
    """A commit of a repository in the library's cache."""

    def __init__(self, repo: str, commit: str) -> None:
        self._repo = repo
        self.root = _root(repo)
        self.commit = commit
        super().__init__(self.root / "snapshots" / commit)

    def stored(self, file: RepositoryFile) -> Path | None:
        if (path := super().stored(file)) is not None or not file.digest:
            return path
        return self._regular(self.root / "blobs" / file.digest)

    def target(self, file: RepositoryFile) -> Path:
        return _folder_below(self.root, f"blobs/{file.digest}") / file.digest

    def publish(self, file: RepositoryFile) -> None:
        """Links the name to the blob; where there are no links, the blob takes the name."""
        if self.path(file).exists():
            return
        _folder_below(self.root, f"snapshots/{self.commit}/{file.name}")
        link = self.path(file)
        new = link.with_name(f".{secrets.token_hex(8)}.link")
        up = "../" * (2 + file.name.count("/"))
        try:
            new.symlink_to(f"{up}blobs/{file.digest}")
        except OSError:
            (self.root / "blobs" / file.digest).rename(link)
            return
        new.replace(link)

    def remember(self, revision: str) -> None:
        before = cached(self._repo, revision)
        if before is None or before.commit != self.commit:
            folder = _folder_below(self.root, f"refs/{revision}")
            write_file(folder / Path(revision).name, self.commit.encode())

    def expected_digest(self, file: RepositoryFile) -> str:
        link = self.path(file)
        name = link.readlink().name if link.is_symlink() else ""
        return name if is_digest(name) else ""

    def _roots(self) -> tuple[Path, ...]:
        """The repository's folder, which may be a link, and the cache with blobs for all."""
        return Path(os.path.realpath(self.root)), Path(os.path.realpath(self.root.parent))


def cached(repo: str, revision: str) -> Cache | None:
    """The files of a revision that are in the cache; None if there are none."""
    commit = revision
    if not is_commit(revision):
        ref = _root(repo) / "refs" / revision
        commit = ref.read_bytes()[:41].decode("ascii", "replace") if ref.is_file() else ""
    if not is_commit(commit):
        return None
    cache = Cache(repo, commit)
    return cache if cache.folder.is_dir() else None


def _root(repo: str) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE).expanduser().absolute() / f"models--{repo.replace('/', '--')}"


def _folder_below(root: Path, name: str) -> Path:
    """The folder of a file below `root`, made if it is missing; `FileRefused` for a link."""
    root.mkdir(parents=True, exist_ok=True)
    folder = root
    for part in name.split("/")[:-1]:
        folder = folder / part
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise FileRefused(f"{folder} is not a plain folder: remove it, or pull elsewhere")
        folder.mkdir(exist_ok=True)
    return folder
