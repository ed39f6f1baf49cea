"""Tables of text, and that of context packs and chat sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.home import session_path
from ...runtime.memory import human_bytes
from ...runtime.store.facts import progress
from ...system.errors import KvarnError
from ...system.terminal import say
from ...system.text import one_line

if TYPE_CHECKING:
    from ...runtime.packs.notes import TextState
    from ...runtime.packs.pack import PackInfo

CELL_WIDTH = 1000
"""Characters of a cell that are shown: a file may hold longer names."""
NO_PACKS = "no packs yet: `kvarn pack build` makes one"
_PACK_HEADS = ("name", "kind", "tokens", "KV cache", "on disk", "model")


def columns(rows: Sequence[Sequence[str]], aligned: str) -> str:
    """Rows of text in columns, each aligned `<` or `>`; unprintable characters are escaped."""
    shown = [[one_line(cell, CELL_WIDTH) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown)]
    lines = (
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, aligned, widths))
        for row in shown
    )
    return "\n".join(line.rstrip() for line in lines)


def list_packs() -> list[PackInfo]:
    """The user's packs and sessions; reports those that cannot be read."""
    from ...runtime.packs.pack import all_packs, pack_info

    packs = []
    for path in all_packs():
        try:
            packs.append(pack_info(path))
        except KvarnError as error:
            say(str(error))
    return packs


def pack_table(packs: Sequence[PackInfo]) -> str:
    """A head, and a row for each pack."""
    return columns([_PACK_HEADS, *map(_pack_row, packs)], "<<>>><")


def texts_table(texts: Sequence[TextState]) -> str:
    """A head, and a row for each text of a folder of packs."""
    return columns([("name", "state", "tokens", "text"), *map(_text_row, texts)], "<<><")


def _text_row(text: TextState) -> tuple[str, ...]:
    tries = text.n_failed + text.n_died
    state = text.state + (f", {tries} attempts" if tries > 1 else "")
    tokens = progress(text.n_tokens, text.goal, text.n_blocks_read, text.n_blocks)
    told = text.reason if text.reason.startswith(text.text) else f"{text.text}: {text.reason}"
    return text.name, state, tokens, told if text.reason else text.text


def _pack_row(pack: PackInfo) -> tuple[str, ...]:
    path = Path(pack.path)
    kind = "session" if path == session_path(path.name) else "pack"
    return path.name, kind, pack.progress, pack.kv, human_bytes(pack.n_bytes), pack.model
