"""Pulling a model: list, choose, check the disk, download; offline, what was pulled before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...runtime.memory import available_bytes, human_bytes
from ..errors import HubError
from ..hf.folder import INDEX, optional_json
from ..writing import check_room
from .choose import Choice, Listed, choose
from .explain import asking, is_out_of_reach

MEMORY_SHARE = 0.5
"""Of the memory that is free: the rest is for the KV cache and other programs."""

Notice = Callable[[str], None]


@dataclass(frozen=True)
class Pulled:
    """What is on this machine now."""

    repo: str
    folder: Path
    model: Path | None
    """The GGUF file to run; None for a folder to convert."""


def pull(
    repo: str,
    *,
    revision: str = "main",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    file: str | None = None,
    to: Path | None = None,
    notice: Notice = lambda line: None,
) -> Pulled:
    """Download what is needed of a repository, or find it where it was pulled before.

    to: a folder for the files (default: the library's cache, $HF_HUB_CACHE). include, exclude,
    file: see `choose`. A transfer that breaks off is resumed; files that are whole are kept when
    the pull is interrupted, and not pulled again. Tokens, endpoint, caches and offline mode are
    huggingface_hub's: HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE.

    Raises `HubError` for what the hub refuses or does not have, `ConvertError` for a full disk.
    """
    repo = _repository(repo)
    try:
        commit, listed = asking(repo, lambda: _list(repo, revision), notice)
    except HubError as error:
        if not is_out_of_reach(error.__cause__):
            raise
        return _pulled_before(repo, revision, include, exclude, file, to, notice)
    choice = _choose(repo, listed, include, exclude, file, notice)
    _check_disk(repo, commit, choice, to)
    folder = _download(repo, revision, commit, choice, to, notice)
    return _pulled(repo, folder, choice)


def _repository(text: str) -> str:
    """ORGANISATION/MODEL of a name or of a page's address."""
    from huggingface_hub.constants import ENDPOINT

    for prefix in (ENDPOINT, "https://huggingface.co", "https://hf.co", "hf://"):
        text = text.removeprefix(prefix)
    return text.strip("/")


def _list(repo: str, revision: str) -> tuple[str, list[Listed]]:
    """The commit that a revision is, and its files."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    if info.sha is None:
        raise HubError(f"the hub names no commit for {repo}")
    return info.sha, [Listed(f.rfilename, f.size or 0) for f in info.siblings or ()]


def _choose(
    repo: str,
    listed: Sequence[Listed],
    include: Sequence[str],
    exclude: Sequence[str],
    file: str | None,
    notice: Notice,
) -> Choice:
    free = available_bytes()
    budget = int(free * MEMORY_SHARE)
    try:
        choice = choose(listed, include=include, exclude=exclude, file=file, budget=budget)
    except HubError as error:
        raise HubError(f"{repo}: {error}") from None
    if choice.ready:
        notice(f"{repo} has ready models:")
        for q in choice.ready:
            taken = " ← pulled" if q.name == choice.model else ""
            notice(f"  {q.type or '?':<10} {human_bytes(q.n_bytes):>9}  {q.name}{taken}")
    if choice.model is not None and file is None and len(choice.ready) > 1:
        notice(f"chosen for {human_bytes(free)} of free memory; --file takes another")
    return choice


def _check_disk(repo: str, commit: str, choice: Choice, to: Path | None) -> None:
    """Room for what is not there yet, before the first byte comes."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    def is_here(file: Listed) -> bool:
        if to is None:
            return isinstance(try_to_load_from_cache(repo, file.name, revision=commit), str)
        path = to / file.name
        return path.is_file() and path.stat().st_size == file.n_bytes

    folder = (Path(HF_HUB_CACHE) if to is None else to).expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    check_room(folder, sum(f.n_bytes for f in choice.files if not is_here(f)), repo)


def _download(
    repo: str, revision: str, commit: str, choice: Choice, to: Path | None, notice: Notice
) -> Path:
    """The folder with the files, small ones first; one by one, so that Ctrl-C ends it at once.

    The first is asked for by the revision's name, which the cache then knows when it is offline;
    the others by the commit that this was, whatever is pushed meanwhile.
    """
    from huggingface_hub import hf_hub_download

    folder, asked_for = to, commit if to is not None else revision
    for file in sorted(choice.files, key=lambda f: f.n_bytes):

        def fetch(name: str = file.name, revision: str = asked_for) -> str:
            return str(hf_hub_download(repo, name, revision=revision, local_dir=to))

        path = Path(asking(repo, fetch, notice))
        if folder is None:
            folder = path.parents[file.name.count("/")]
            asked_for = folder.name
    assert folder is not None
    return folder


def _pulled_before(
    repo: str,
    revision: str,
    include: Sequence[str],
    exclude: Sequence[str],
    file: str | None,
    to: Path | None,
    notice: Notice,
) -> Pulled:
    """The same files from this machine, where the hub cannot be asked."""
    folder = to if to is not None else asking(repo, lambda: _cached(repo, revision), notice)
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    listed = [Listed(path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths]
    notice(f"the hub is out of reach: taking what was pulled before, {folder}")
    choice = _choose(repo, listed, include, exclude, file, notice)
    names = {listed.name for listed in choice.files}
    wanted = optional_json(folder / INDEX).get("weight_map", {}) if choice.model is None else {}
    missing = sorted(set(wanted.values()) - names)
    if missing:
        raise HubError(
            f"{repo} has been pulled in part: {missing[0]} is missing and the hub is out of reach"
        )
    return _pulled(repo, folder, choice)


def _cached(repo: str, revision: str) -> Path:
    """The cache's folder of a revision, complete or not."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError as error:
        # Files that were never asked for count as missing here.
        if (path := getattr(error, "snapshot_path", None)) is None:
            raise
        return Path(path)


def _pulled(repo: str, folder: Path, choice: Choice) -> Pulled:
    return Pulled(repo, folder, None if choice.model is None else folder / choice.model)
