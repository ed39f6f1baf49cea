"""Context options of requests, and the packs that requests name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....system.errors import KvarnError
from ....system.text import shown
from ....system.values import WrongValue
from ...context.planning.request import ContextRequest, context_words
from ...home import pack_path
from ...packs.pack import all_packs, pack_info
from ...store import Disk, ModelMismatch, PackBusy, PackError, Ram
from ...store.disk.info import pack_head
from ..protocol import Kind, PackFacts
from ..refusal import Refusal

_NAME_BYTES = 200
"""Of a pack's name; file systems allow 255, of which temporary files beside it need some."""


class BadWord(KvarnError):
    """A word about reading that a request cannot have."""


def request_of(words: Mapping[str, Any]) -> ContextRequest:
    """What words of a command line, or of a request, ask of a context.

    Raises `BadWord` for a word that is none or has no such value, and what methods raise.
    """
    kinds = context_words()
    for word in ("ctx", "store", "pack", "io"):  # which are said otherwise, or not at all
        del kinds[word]
    if unknown := next((word for word in words if word not in kinds), ""):
        raise BadWord(
            f"{shown(unknown, 60)} says nothing about reading: expected {', '.join(kinds)}"
        )
    parsed = {}
    for word, value in words.items():
        try:
            parsed[word] = kinds[word](value)
        except WrongValue as wrong:
            raise BadWord(str(wrong.for_option(word))) from wrong
    return ContextRequest.of(parsed)


def pack_folder(name: str, *, exists: bool = True) -> Path:
    """The folder of the pack that a request names: one of the user's, and no other path."""
    is_path = os.sep in name or (os.altsep or os.sep) in name
    if is_path or len(os.fsencode(name)) > _NAME_BYTES:
        expected = f"a plain word of at most {_NAME_BYTES} bytes"
        raise Refusal("invalid", f"pack {shown(name, 80)} is no name: expected {expected}")
    path = pack_path(name)
    if exists and not (path / "pack.json").is_file():
        raise Refusal("not found", f"there is no pack {shown(name, 80)}")
    return path


@contextmanager
def refuse_bad_pack(pack: Path | None) -> Iterator[None]:
    """Refuse a request whose pack cannot be used, by the pack's name: its path is none of the
    client's business. Unless the system fails, trying again does not help: the request is wrong."""
    try:
        yield
    except PackError as error:
        if pack is None or error.path not in (pack, pack.resolve()):
            raise
        reason = error.difference if isinstance(error, ModelMismatch) else error.reason
        kind: Kind = "engine" if isinstance(error.__cause__, OSError) else "invalid"
        if isinstance(error, PackBusy):
            kind = "busy"
        raise Refusal(kind, f"pack {shown(pack.name, 80)}: {reason}") from error


def check_finished(pack: Path) -> None:
    """Raises `PackError` for a pack of which only a part is read: an answer would not say so."""
    head = pack_head(pack)
    if not head.complete:
        raise PackError(
            pack,
            f"it is not finished, {head.n_tokens:,} of {head.goal:,} tokens are read: wait for its "
            "end, or send the text again to go on with it",
        )


def list_packs() -> list[PackFacts]:
    """The user's packs; those that cannot be read are not sound."""
    packs = []
    for path in all_packs():
        if path == pack_path(path.name):
            try:
                info = pack_info(path)
                facts = path.name, info.n_tokens, info.n_bytes, info.model
                packs.append(PackFacts(*facts, is_finished=info.complete))
            except KvarnError:
                packs.append(PackFacts(path.name, 0, 0, is_sound=False))
    return packs


def after_pack(request: ContextRequest, words: Mapping[str, Any], pack: Path) -> ContextRequest:
    """The request of a prompt that follows a pack: with its types of K and V, unless the words say
    otherwise, so that they can be used."""
    if "kv_type" in words:
        return request
    return replace(request, store=Ram(*Disk(pack, read_only=True).types()))
