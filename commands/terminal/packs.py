"""The table of context packs and chat sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.home import session_path
from ...runtime.memory import human_bytes
from ...system.errors import KvarnError
from .columns import columns
from .notices import notice

if TYPE_CHECKING:
    from ...runtime.packs import PackInfo

NO_PACKS = "no packs yet: `kvarn pack build` makes one"
_HEADS = ("name", "kind", "tokens", "KV cache", "on disk", "model")


def known_packs() -> list[PackInfo]:
    """The user's packs and sessions; those that cannot be read are told."""
    from ...runtime.packs import all_packs, pack_info

    found = []
    for path in all_packs():
        try:
            found.append(pack_info(path))
        except KvarnError as error:
            notice(str(error))
    return found


def pack_table(packs: Sequence[PackInfo]) -> str:
    """A head and one row for each."""
    return columns([_HEADS, *map(_row, packs)], "<<>>><")


def _row(pack: PackInfo) -> tuple[str, ...]:
    path = Path(pack.path)
    kind = "session" if path == session_path(path.name) else "pack"
    tokens = f"{pack.n_tokens:,}" + ("" if pack.complete else f" of {pack.goal:,}")
    return path.name, kind, tokens, pack.kv, human_bytes(pack.n_bytes), pack.model
