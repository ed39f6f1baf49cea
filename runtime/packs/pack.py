"""Context packs as a whole: build, describe, list and remove them."""
# ruff: noqa: PLC0414 - a name imported as itself is exported

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...system.errors import KvarnError
from ...system.spelling import spelt
from ..attend import ATTENDS
from ..context.reading.prompt import n_common, prompt_ids
from ..home import home
from ..prefill import SparsePrefill
from ..store import Disk, PackError
from ..store.disk.archive import clear_imports
from ..store.disk.contents import remove_files, take_lock
from ..store.disk.format.manifest import Manifest
from ..store.disk.info import pack_info as pack_info
from ..store.disk.parts import remove_parts
from ..store.facts import PackInfo as PackInfo
from .notes import remove_note

if TYPE_CHECKING:
    from ..attend import Attend
    from ..context import Context, Progress
    from ..model import Model
    from ..prefill import Prefill


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
        hint = ": remove the folder yourself if it was a pack" if path.is_dir() else ""
        raise PackError(path, f"{error.reason}; nothing was removed{hint}") from error
    for other in all_packs():
        if _parent_of(other) == path.resolve():
            raise PackError(path, f"{other} begins with its segments: remove that first")
    lock = take_lock(path)
    try:
        left = remove_files(path)
        remove_note(path)
        remove_parts(path)
        return left
    finally:
        os.close(lock)


def _parent_of(path: Path) -> Path | None:
    """The folder of a pack's parent; None if it has none, or cannot be read."""
    try:
        parent = Manifest.read(path).parent
    except PackError:
        return None
    return None if parent is None else parent.folder(path).resolve()


def build_pack(
    model: Model,
    store: Disk | str | Path,
    text: str | Sequence[int],
    n_ctx: int | None = None,
    prefill: Prefill | None = None,
    progress: Progress | None = None,
    opened: Callable[[Context], None] | None = None,
) -> PackInfo:
    """Read a text, or the ids of one, into a context pack; goes on where an earlier build was
    interrupted.

    store: the folder of the pack, or a `Disk` that names it and the types of K and V. n_ctx: room
    for so many tokens, by default the model's training length. prefill: by default as the pack was
    begun, exactly for a new one. progress: as in `Context.prefill`, for the tokens that were not
    there. opened: called with the context before it reads them. Raises `KvarnError` for an empty
    text and one without room, `PackError` if the pack holds other tokens, or was read in another
    way.
    """
    ids = text_ids(model, text, n_ctx)
    disk = replace(store if isinstance(store, Disk) else Disk(store), goal=len(ids))
    n_ctx = n_ctx or model.config.n_ctx_train
    with model.context(n_ctx, store=disk, prefill=prefill) as context:
        done = len(context.tokens)
        check_begins(context, ids)
        if opened is not None:
            opened(context)
        if done < len(ids):
            context.prefill(ids[done:], progress)
    return pack_info(Path(disk.path))


def text_ids(model: Model, text: str | Sequence[int], n_ctx: int | None) -> Sequence[int]:
    """The ids of a text that a context of `n_ctx` tokens is to read, by default of the model's
    training length. Raises `KvarnError` for an empty text and one without room."""
    ids = prompt_ids(model.tokenizer, text) if isinstance(text, str) else text
    if not text:
        raise KvarnError("nothing to read: the text is empty")
    limit = model.config.n_ctx_train
    if len(ids) > (n_ctx or limit):
        use = f"use {spelt('ctx')} {len(ids)}"
        if len(ids) > limit >= (n_ctx or limit):
            use = (
                f"use a part of it, or a model that was trained on more ({model.name} was on "
                f"{limit:,})"
            )
        raise KvarnError(
            f"the text has {len(ids):,} tokens, more than the {n_ctx or limit:,} of the context: "
            f"{use}"
        )
    return ids


def check_begins(context: Context, ids: Sequence[int]) -> None:
    """Raise `PackError` unless the tokens in the pack of a context are the first of a text."""
    done = len(context.tokens)
    if n_common(ids, context.tokens) < done and isinstance(disk := context.plan.store, Disk):
        raise PackError(
            Path(disk.path),
            f"it holds {done:,} tokens of another text: choose another name or remove it",
        )


def index_pack(
    model: Model,
    path: Path,
    attend: Attend,
    n_ctx: int | None = None,
    progress: Progress | None = None,
) -> PackInfo:
    """Store the index of `attend` in the pack, and that by which questions are read sparsely. A
    reader then indexes only the tokens after the last full segment.

    n_ctx: the size of the contexts that will open it, see `Model.context`. progress: as in
    `Context.index`. Raises `PackError` for a method without an index.
    """
    if not attend.selects:
        raise PackError(
            path,
            f"an index is of a method that chooses tokens: give {spelt('method')} "
            + ", ".join(name for name, method in ATTENDS.items() if method.selects),
        )
    questions = SparsePrefill().wrap(attend)
    with model.context(n_ctx or None, questions, store=Disk(path), kv_on="host") as context:
        context.index(progress)
    return pack_info(path)
