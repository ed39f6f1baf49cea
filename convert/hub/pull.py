"""Pulling a model: list, choose, check the disk, download; offline, take it from the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ...runtime.gguf import GGUFError, open_gguf
from ...runtime.memory import available_bytes, human_bytes
from ...system.text import one_line
from ..errors import HubError, HubUnreachable
from ..hf.files.folder import INDEX
from ..hf.files.jsons import optional_json
from ..writing import check_room
from .ask import Notice
from .choose import ANY, Choice, RepositoryFile, choose
from .fetch import Progress, check, fetch
from .listing import check_files, check_repository, check_revision, list_files
from .places import Cache, Folder, cached

MEMORY_SHARE = 0.5
"""Share of the free memory that a model may take; the rest is for the KV cache and programs."""
_MAX_SHOWN = 40
"""Most ready models that a listing shows."""


@dataclass(frozen=True)
class PullResult:
    """A pulled model."""

    repo: str
    folder: Path
    model: Path | None
    """The GGUF file to run; None for a folder to convert."""


@contextmanager
def _no_progress(name: str) -> Iterator[Callable[[int, int], None]]:
    yield lambda done, total: None


def pull(
    repo: str,
    *,
    revision: str = "main",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    file: str | None = None,
    to: Path | None = None,
    notice: Notice = lambda line: None,
    progress: Progress = _no_progress,
) -> PullResult:
    """Download a model of a repository; without connection, find it where it was pulled before.

    to: a folder for the files (default: the library's cache, $HF_HUB_CACHE). include, exclude,
    file: see `choose`. Every file has the size and the checksum that the hub lists, and a ready
    model is a GGUF file that kvarn reads. A transfer that breaks off is resumed. Complete files of
    an interrupted pull stay, and are not pulled again. Tokens, endpoint, caches and offline mode
    are huggingface_hub's: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE.

    Raises `HubError` for files that the hub refuses, does not have, or sends otherwise than it
    lists them; `ConvertError` for a full disk; `FileRefused` where something else is in the place
    of a file.
    """
    repo = _repository(repo)
    check_repository(repo)
    check_revision(revision)

    def chosen(listed: Sequence[RepositoryFile]) -> Choice:
        choice = _choose(repo, listed, include, exclude, file, notice)
        check_files(repo, (f.name for f in choice.files))
        return choice

    place: Folder
    try:
        commit, listed = list_files(repo, revision, notice)
    except HubUnreachable as error:
        place = _find_earlier_pull(repo, revision, to, error)
        notice(f"the hub is out of reach: taking what was pulled before, {place.folder}")
        choice = chosen(_files_in(place))
        _check_pulled_before(repo, choice, place, progress)
    else:
        place = Cache(repo, commit) if to is None else Folder(to)
        choice = chosen(listed)
        _check_disk(repo, choice, place)
        for wanted in sorted(choice.files, key=lambda f: f.n_bytes):  # one by one: Ctrl-C ends it
            fetch(repo, commit, wanted, place, notice, progress)
        place.remember(revision)
    model = None if choice.model is None else place.folder / choice.model
    if model is not None:
        _check_model(repo, model)
    return PullResult(repo, place.folder, model)


def find_pulled(repo: str, file: str) -> Path | None:
    """The GGUF file of a repository in the cache, without a request to the hub; None if it is not
    there, or not whole. file: see `choose`."""
    repo = _repository(repo)
    check_repository(repo)
    place = cached(repo, "main")
    if place is None:
        return None
    try:
        choice = choose(_files_in(place), file=file, budget=_budget())
    except HubError:  # not pulled yet: the hub may have it
        return None
    if choice.model is None or any(place.stored(file) is None for file in choice.files):
        return None
    chosen = next(q for q in choice.ready if q.name == choice.model)
    if not (file.lower() in ANY or chosen.is_named(file) or chosen.has_type(file)):
        return None  # the hub may have one that fits better
    return place.folder / choice.model


def _budget() -> int:
    """Bytes that a model may take in memory."""
    return int(available_bytes() * MEMORY_SHARE)


def _repository(text: str) -> str:
    """ORGANISATION/MODEL of a name or of a page's address."""
    from huggingface_hub.constants import ENDPOINT

    for prefix in (ENDPOINT, "https://huggingface.co", "https://hf.co", "hf.co/", "hf://"):
        text = text.removeprefix(prefix)
    return text.strip("/")


def _choose(
    repo: str,
    listed: Sequence[RepositoryFile],
    include: Sequence[str],
    exclude: Sequence[str],
    file: str | None,
    notice: Notice,
) -> Choice:
    free = available_bytes()
    try:
        choice = choose(listed, include=include, exclude=exclude, file=file, budget=_budget())
    except HubError as error:
        raise HubError(f"{repo}: {one_line(str(error))}") from None
    if choice.ready:
        notice(f"{repo} has ready models:")
        for q in choice.ready[:_MAX_SHOWN]:
            taken = " ← pulled" if q.name == choice.model else ""
            name = one_line(q.name, 120)
            notice(f"  {q.type or '?':<10} {human_bytes(q.n_bytes):>9}  {name}{taken}")
        if (n_more := len(choice.ready) - _MAX_SHOWN) > 0:
            notice(f"  and {n_more} more")
    if choice.model is not None and (file or "").lower() in ANY and len(choice.ready) > 1:
        notice(f"chosen for {human_bytes(free)} of free memory; --file takes another")
    return choice


def _check_disk(repo: str, choice: Choice, place: Folder) -> None:
    """`ConvertError` unless the disk has room for the missing files."""
    check_room(place.folder, sum(f.n_bytes for f in choice.files if place.stored(f) is None), repo)


def _find_earlier_pull(repo: str, revision: str, to: Path | None, error: HubUnreachable) -> Folder:
    """The place of an earlier pull; `HubError` if there was none."""
    place = cached(repo, revision) if to is None else Folder(to) if to.is_dir() else None
    if place is None:
        raise HubError(f"{repo} has not been pulled to this machine; {error}") from error
    return place


def _files_in(place: Folder) -> list[RepositoryFile]:
    """The files of a folder that was pulled to; in a cache their links tell their checksums."""
    listed = []
    for folder, _, names in os.walk(place.folder):
        for path in (Path(folder) / name for name in sorted(names)):
            if path.is_file():
                name = path.relative_to(place.folder).as_posix()
                file = RepositoryFile(name, path.stat().st_size)
                listed.append(replace(file, digest=place.expected_digest(file)))
    return sorted(listed, key=lambda f: f.name)


def _check_pulled_before(repo: str, choice: Choice, place: Folder, progress: Progress) -> None:
    """`HubError` unless all files are there, in their places and unchanged."""
    for file in choice.files:
        path = place.stored(file)
        if path is not None and file.digest:
            with progress(file.name) as step:
                check(repo, file, path, step)
    names = {file.name for file in choice.files}
    if choice.model is not None or INDEX not in names:
        return
    shards = optional_json(place.folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(s, str) for s in shards.values()):
        raise HubError(f"{place.folder / INDEX} has no weight_map: pull {repo} again")
    if missing := sorted(set(shards.values()) - names):
        raise HubError(
            f"{repo} has been pulled in part: {one_line(missing[0], 80)} is missing and the hub "
            "is out of reach"
        )


def _check_model(repo: str, path: Path) -> None:
    """`HubError` for a damaged GGUF file: it must not become the default model."""
    try:
        open_gguf(path).close()
    except GGUFError as error:
        raise HubError(f"what was pulled of {repo} is not a model kvarn reads: {error}") from None
