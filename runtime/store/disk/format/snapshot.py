"""The file `snapshot`: the whole state of a context that evicts, written anew each time.

       0     8  magic "kvarnsl1"
       8     8  n, bytes of the facts
      16     8  digest of bytes 0 to 15, then of the facts
      24     n  facts: JSON, see `Facts`
    4096     …  token ids u32, hidden state float32, then the parts of the store in their order,
             and what the keep method adds

Slots change in place, so nothing of an older snapshot can be used again. A snapshot is written to
another file, synced and renamed: after a crash there is the whole old one or the whole new one.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import xxhash

from .....ops.arrays import F32
from .. import files
from ..errors import PackDamaged
from ..files import DIGEST, digest
from .log import COLUMN_NAME, MOST_ITEM_BYTES

NAME = "snapshot"
_HEAD = struct.Struct("<8sQ")
_MAGIC = b"kvarnsl1"
_CONTENT = 4096  # where the contents begin
_PIECE = 16 << 20  # bytes written or read at a time


@dataclass(frozen=True)
class Facts:
    """What a snapshot holds.

    reserved: tokens that the store had room for, which determines the size of its parts. columns:
    bytes per item of each. digest: of all contents, in hexadecimal. n_extra: bytes at the end
    that the keep method added. n_prompt: see `Saved`.
    """

    n_tokens: int
    reserved: int
    n_hidden: int
    columns: dict[str, int]
    n_bytes: int
    digest: str
    n_extra: int
    n_prompt: int


@dataclass(frozen=True)
class Snapshot:
    """The state to be written; parts: the store's memory, piece by piece; extra: what follows."""

    tokens: Sequence[int]
    hidden: F32 | None
    reserved: int
    columns: dict[str, int]
    parts: Iterable[memoryview]
    extra: Sequence[memoryview] = ()
    n_prompt: int = 0


def write(folder: Path, state: Snapshot) -> None:
    """Make `state` the folder's snapshot; OSError if that fails, and the old one stays."""
    hidden = b"" if state.hidden is None else state.hidden.astype("<f4").tobytes()
    ids = np.array(state.tokens, "<u4").tobytes()
    with files.replacing(folder / NAME) as fd:
        end, content = _CONTENT, xxhash.xxh3_64()
        for part in (memoryview(ids), memoryview(hidden), *state.parts, *state.extra):
            for piece in _pieces(part):
                files.write_at(fd, piece, end)
                content.update(piece)
                end += len(piece)
        facts = Facts(
            n_tokens=len(state.tokens),
            reserved=state.reserved,
            n_hidden=len(hidden) // 4,
            columns=state.columns,
            n_bytes=end - _CONTENT,
            digest=content.hexdigest(),
            n_extra=sum(part.nbytes for part in state.extra),
            n_prompt=state.n_prompt,
        )
        files.write_at(fd, _encode(facts), 0)


def read_facts(folder: Path) -> Facts | None:
    """What the folder's snapshot holds, None without one; `PackDamaged` if it is not sound."""
    try:
        fd = files.open_file(folder / NAME, writable=False)
    except FileNotFoundError:
        return None
    try:
        data, size = files.read_at(fd, _CONTENT, 0), os.fstat(fd).st_size
    finally:
        os.close(fd)
    facts = _decode(data)
    if facts is None:
        raise PackDamaged(folder, f"{NAME} is damaged: its facts do not match their checksum")
    if size != _CONTENT + facts.n_bytes:
        raise PackDamaged(
            folder, f"{NAME} has {size:,} bytes, expected {_CONTENT + facts.n_bytes:,}"
        )
    return facts


def read(folder: Path, facts: Facts, parts: Iterable[memoryview]) -> tuple[list[int], F32 | None]:
    """Fill the parts of a store; returns (token ids, hidden state).

    Raises `PackDamaged` if the contents have another size, or are not those that were written.
    """
    ids, hidden = np.empty(facts.n_tokens, "<u4"), np.empty(facts.n_hidden, "<f4")
    places = [ids.view(np.uint8).data, hidden.view(np.uint8).data, *parts]
    if sum(place.nbytes for place in places) != facts.n_bytes:
        raise PackDamaged(folder, f"{NAME} holds {facts.n_bytes:,} bytes of another kind of store")
    content = xxhash.xxh3_64()
    with os.fdopen(files.open_file(folder / NAME, writable=False), "rb") as file:
        file.seek(_CONTENT)
        for place in places:
            for piece in _pieces(place):
                if file.readinto(piece) != len(piece):
                    raise PackDamaged(folder, f"{NAME} is cut short")
                content.update(piece)
    if content.hexdigest() != facts.digest:
        raise PackDamaged(folder, f"{NAME} is damaged: its contents do not match their checksum")
    return ids.tolist(), hidden.astype(np.float32) if facts.n_hidden else None


def _pieces(part: memoryview) -> Iterable[memoryview]:
    for start in range(0, part.nbytes, _PIECE):
        yield part[start : start + _PIECE]


def _encode(facts: Facts) -> bytes:
    body = json.dumps(asdict(facts)).encode()
    head = _HEAD.pack(_MAGIC, len(body))
    data = head + digest(body, head) + body
    return data.ljust(_CONTENT, b"\0")


def _decode(data: bytes) -> Facts | None:
    start = _HEAD.size + DIGEST
    if len(data) < _CONTENT:
        return None
    magic, n_body = _HEAD.unpack_from(data)
    body = data[start : start + n_body]
    if magic != _MAGIC or digest(body, data[: _HEAD.size]) != data[_HEAD.size : start]:
        return None
    try:
        facts = Facts(**json.loads(body))
    except (TypeError, ValueError, RecursionError):
        return None
    return facts if _sound(facts) else None


def _sound(facts: Facts) -> bool:
    """Whether the facts are possible: numbers from 0 on, columns that a store can have."""
    numbers = facts.n_tokens, facts.reserved, facts.n_hidden, facts.n_bytes, facts.n_extra
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in (*numbers, facts.n_prompt)):
        return False
    if facts.n_prompt > facts.n_tokens:
        return False
    if not isinstance(facts.columns, dict) or not isinstance(facts.digest, str):
        return False
    return 4 * (facts.n_tokens + facts.n_hidden) + facts.n_extra <= facts.n_bytes and all(
        COLUMN_NAME.fullmatch(name) and type(size) is int and 0 < size <= MOST_ITEM_BYTES
        for name, size in facts.columns.items()
    )
