"""Context packs as a whole: build, describe, list and remove them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .context.prompt import n_common
from .home import home
from .prefill import SparsePrefill
from .store import Disk, PackError, ProbeFacts
from .store.disk import PackFolder
from .store.disk.archive import clear_imports
from .store.disk.contents import remove_files, take_lock
from .store.disk.errors import unopened
from .store.disk.format import snapshot
from .store.disk.format.log import KV
from .store.disk.format.manifest import Manifest

if TYPE_CHECKING:
    from .attend import Attend
    from .context import Context, Progress
    from .model import Model
    from .prefill import Prefill


@dataclass(frozen=True)
class PackInfo:
    """What a pack holds, as of its last commit."""

    path: str
    id: str
    model: str
    fingerprint: str
    model_path: str
    kv: str
    n_tokens: int
    goal: int
    """Tokens it is to hold when complete; 0 for any number."""
    commits: int
    indexes: list[str]
    prefill: str
    """How its prompts were read: "exact", or what `PrefillFacts` says."""
    probe: list[ProbeFacts]
    """What was measured beside sparse reading, layer by layer: see `--prefill-probe`."""
    parent: str
    parent_prefill: str
    """How its parent's were; "" without one, or where that cannot be read."""
    n_bytes: int
    """Disk space of its own files."""

    @property
    def complete(self) -> bool:
        return self.n_tokens >= self.goal

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "complete": self.complete}


def pack_info(path: Path) -> PackInfo:
    """Describe a pack; `PackError` if it cannot be opened."""
    try:
        return _info(path)
    except OSError as error:
        raise unopened(path, error) from error


def _info(path: Path) -> PackInfo:
    folder = PackFolder(path)
    manifest, above = folder.manifest, folder.parent
    probe: list[ProbeFacts] = []
    if manifest.slots is None:
        state = folder.state()
        n_tokens, commits = state.commit.n_tokens, state.commit.sequence
        probe = [sums.means(layer) for layer, sums in sorted(state.commit.probe.items())]
        indexes = sorted(name for name in state.tables.places if name != KV)
    else:
        facts = snapshot.read_facts(path)
        n_tokens, indexes = (facts.n_tokens, sorted(facts.columns)) if facts else (0, [])
        commits = int(facts is not None)
    return PackInfo(
        path=str(path),
        id=manifest.id,
        model=manifest.model.name,
        fingerprint=manifest.model.fingerprint,
        model_path=manifest.model.path,
        kv=manifest.kv,
        n_tokens=n_tokens,
        goal=manifest.goal,
        commits=commits,
        indexes=indexes,
        prefill=str(manifest.prefill or "exact"),
        probe=probe,
        parent="" if manifest.parent is None else manifest.parent.path,
        parent_prefill="" if above is None else str(above.manifest.prefill or "exact"),
        n_bytes=sum(file.lstat().st_blocks * 512 for file in path.iterdir()),
    )


def all_packs() -> list[Path]:
    """The folders of the user's packs and sessions, in the order of their names.

    Removes what killed imports have left beside them.
    """
    clear_imports(home() / "packs")
    folders = [path for kind in ("packs", "sessions") for path in (home() / kind).glob("*")]
    return sorted(path for path in folders if path.is_dir() and not path.name.startswith("."))


def remove_pack(path: Path) -> list[str]:
    """Delete a pack: its files, and the folder if nothing else is in it. Readers that have it open
    keep what they mapped.

    Returns the names of other files, which stay. Raises `PackError` if the folder is not a sound
    pack, or a link; if a writer is at work in it; and if another of the user's packs or sessions
    begins with its segments.
    """
    if path.is_symlink():
        raise PackError(path, "it is a link, nothing was removed: name the folder it points to")
    try:
        Manifest.read(path)
    except PackError as error:
        hint = (
            "remove the folder yourself if it was a pack"
            if path.is_dir()
            else "`kvarn pack ls` lists the packs"
        )
        raise PackError(path, f"{error.what}; nothing was removed: {hint}") from error
    for other in all_packs():
        if _parent_of(other) == path.resolve():
            raise PackError(path, f"{other} begins with its segments: remove that first")
    lock = take_lock(path)
    try:
        return remove_files(path)
    finally:
        os.close(lock)


def _parent_of(path: Path) -> Path | None:
    """The folder of a pack's parent; None if it has none, or cannot be read."""
    try:
        parent = Manifest.read(path).parent
    except PackError:
        return None
    return None if parent is None else Path(parent.path)


def build_pack(
    model: Model,
    path: Path,
    ids: Sequence[int],
    n_ctx: int,
    kinds: tuple[str | None, str | None] = (None, None),
    opened: Callable[[Context], None] | None = None,
    progress: Progress | None = None,
    prefill: Prefill | None = None,
    stop_flag: int = 0,
) -> PackInfo:
    """Read `ids` into the pack; goes on where an earlier build was interrupted.

    opened: called with the context, which holds the tokens already there. progress: as in
    `Context.prefill`, for the tokens after those. prefill: default that of the pack, or exact.
    stop_flag: as in `Context.stop_at`; 0: none. Raises `PackError` if the pack holds other tokens,
    or was read in another way.
    """
    disk = Disk(path, *kinds, goal=len(ids))
    with model.context(n_ctx, store=disk, prefill=prefill) as context:
        context.stop_at(stop_flag)
        done = len(context.tokens)
        if n_common(ids, context.tokens) < done:
            raise PackError(
                path, f"it holds {done:,} tokens of another text: choose another name or remove it"
            )
        if opened is not None:
            opened(context)
        if done < len(ids):
            context.prefill(ids[done:], progress)
    return pack_info(path)


def index_pack(
    model: Model, path: Path, attend: Attend, n_ctx: int, progress: Progress | None = None
) -> PackInfo:
    """Keep in the pack what `attend` chooses by, and what questions that are read sparsely choose
    by; a reader then indexes nothing but the tokens after the last full segment.

    progress: as in `Context.index`. Raises `PackError` for a method without an index.
    """
    if not attend.selects:
        raise PackError(
            path,
            f"--method {attend.name} reads every token and has no index to keep: give --method "
            "topk, hash, magicpig or quest",
        )
    questions = SparsePrefill().around(attend)
    with model.context(n_ctx, questions, store=Disk(path), kv_on="host") as context:
        context.index(progress)
    return pack_info(path)
