"""The file `tokens`: one record for each full segment that is written; records never change.

    record:  u32 n, bytes of the payload  |  u32 kind  |  payload  |  8 bytes chain
    kind 1, K and V of a segment:   u32 segment  |  u32 slot  |  1,024 x u32 token ids
                                    |  8 bytes digest of the slot of each layer's file
    kind 2, a column's segment:     u32 segment  |  u32 slot  |  u32 bytes per item
                                    |  8 bytes digest of the slot  |  name

A slot is the place of a segment in its file, at byte slot * stride; it is written once. `chain` is
the digest of this record and all before it, so a commit needs only the log's length and last chain
to identify it. The latest record of a segment is valid. A record of K and V cancels older records
of its segment and of all later segments.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .....ops.attention.layout import SEGMENT
from ..errors import PackDamaged
from ..files import DIGEST, digest

if TYPE_CHECKING:
    from ..folder import PackFolder

NAME = "tokens"
KV = ""
"""The name of K and V where columns have names."""
COLUMN_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_KIND_KV, _KIND_COLUMN = 1, 2
_HEAD, _PLACE, _ITEM = struct.Struct("<II"), struct.Struct("<II"), struct.Struct("<I")
_MOST_SLOTS = 1 << 24
MOST_COLUMNS = 256
MOST_ITEM_BYTES = 1 << 14  # per token and KV head; K and V themselves take 1 KiB at most


@dataclass(frozen=True, slots=True)
class Place:
    """Where a full segment is, and the digest of its slot in each file."""

    folder: PackFolder
    slot: int
    digests: tuple[bytes, ...]


@dataclass
class Tables:
    """The full segments in a log's valid records, and their token ids.

    `places[KV]` are those of K and V; the other keys are columns, whose items have `item_bytes`.
    """

    places: dict[str, list[Place]] = field(default_factory=lambda: {KV: []})
    item_bytes: dict[str, int] = field(default_factory=dict)
    tokens: list[memoryview] = field(default_factory=list)
    """Of each full segment, 1,024 x u32 in what was read of the log; a `State` has a copy."""
    next_slot: dict[str, int] = field(default_factory=dict)

    def cut(self, n_segments: int) -> None:
        """Keep only the first `n_segments` segments."""
        del self.tokens[n_segments:]
        for places in self.places.values():
            del places[n_segments:]

    def for_child(self) -> Tables:
        """A copy for a child pack, whose files have no slots yet."""
        places = {name: list(places) for name, places in self.places.items()}
        return Tables(places, dict(self.item_bytes), list(self.tokens))


def record(
    plane: str, segment: int, place: Place, tokens: bytes, item_bytes: int, chain: bytes
) -> tuple[bytes, bytes]:
    """(record of a segment, its chain) after the record of `chain`.

    tokens: the segment's ids, for K and V; item_bytes: bytes per item, for columns.
    """
    kind, payload = _KIND_KV, tokens + b"".join(place.digests)
    if plane != KV:
        kind, payload = _KIND_COLUMN, _ITEM.pack(item_bytes) + place.digests[0] + plane.encode()
    body = _HEAD.pack(_PLACE.size + len(payload), kind) + _PLACE.pack(segment, place.slot) + payload
    chain = digest(body, chain)
    return body + chain, chain


def most_record(n_files: int) -> int:
    """The most bytes of the record of a segment in so many files."""
    return _HEAD.size + _PLACE.size + 4 * SEGMENT + DIGEST * (n_files + 1)


def replay(
    data: memoryview, last_chain: bytes, tables: Tables, folder: PackFolder, n_layers: int
) -> None:
    """Apply the records in `data` to `tables`; `PackDamaged` if they are not sound."""
    chain, start, path = b"", 0, folder.path
    while start < len(data):
        if start + _HEAD.size > len(data):
            raise _damaged(path, start)
        n, kind = _HEAD.unpack_from(data, start)
        stop = start + _HEAD.size + n
        if stop + DIGEST > len(data):
            raise _damaged(path, start)
        chain = digest(data[start:stop], chain)
        if data[stop : stop + DIGEST] != chain:
            raise _damaged(path, start)
        _apply(kind, data[start + _HEAD.size : stop], tables, folder, n_layers)
        start = stop + DIGEST
    if chain != last_chain:
        raise _damaged(path, len(data))


def _damaged(path: Path, offset: int) -> PackDamaged:
    return PackDamaged(path, f"{NAME} is damaged: the record at byte {offset} is not sound")


def _apply(
    kind: int, payload: memoryview, tables: Tables, folder: PackFolder, n_layers: int
) -> None:
    ids_end = _PLACE.size + 4 * SEGMENT
    if kind == _KIND_KV and len(payload) == ids_end + DIGEST * n_layers:
        segment, slot = _PLACE.unpack_from(payload)
        digests = tuple(
            bytes(payload[i : i + DIGEST]) for i in range(ids_end, len(payload), DIGEST)
        )
        _check(segment, slot, len(tables.places[KV]), folder.path)
        tables.cut(segment)
        tables.tokens.append(payload[_PLACE.size : ids_end])
        _put(tables, KV, Place(folder, slot, digests))
    elif kind == _KIND_COLUMN and len(payload) > _PLACE.size + _ITEM.size + DIGEST:
        segment, slot = _PLACE.unpack_from(payload)
        (item_bytes,) = _ITEM.unpack_from(payload, _PLACE.size)
        rest = bytes(payload[_PLACE.size + _ITEM.size :])
        name = rest[DIGEST:].decode("ascii", "replace")
        places = tables.places.setdefault(name, [])
        if (
            not COLUMN_NAME.fullmatch(name)
            or segment >= len(tables.places[KV])
            or not 0 < item_bytes <= MOST_ITEM_BYTES
            or len(tables.places) > 1 + MOST_COLUMNS
            or tables.item_bytes.setdefault(name, item_bytes) != item_bytes
        ):
            raise _impossible(folder.path, segment, slot)
        _check(segment, slot, len(places), folder.path)
        del places[segment:]
        _put(tables, name, Place(folder, slot, (rest[:DIGEST],)))
    else:
        raise PackDamaged(folder.path, f"{NAME} holds a record of unknown kind {kind}")


def _check(segment: int, slot: int, n_known: int, path: Path) -> None:
    if segment > n_known or slot >= _MOST_SLOTS:
        raise _impossible(path, segment, slot)


def _put(tables: Tables, name: str, place: Place) -> None:
    tables.places[name].append(place)
    tables.next_slot[name] = max(tables.next_slot.get(name, 0), place.slot + 1)


def _impossible(path: Path, segment: int, slot: int) -> PackDamaged:
    return PackDamaged(path, f"{NAME} places segment {segment} in slot {slot}, which cannot be")
