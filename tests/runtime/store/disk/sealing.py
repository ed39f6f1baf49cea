"""Packs taken apart, and put together again with checksums that are right, whatever was changed."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvarn.runtime.store.disk.files import DIGEST, digest
from kvarn.runtime.store.disk.folder import PackFolder, stride_of
from kvarn.runtime.store.disk.format import centre, log, manifest, snapshot, superblock, tail
from kvarn.runtime.store.disk.format.manifest import _check

_HEAD = struct.Struct("<II")
_PLACE = struct.Struct("<II")


@dataclass
class Record:
    """A record of the log. body: all after kind, segment and slot but the digests, which are of
    the slots of `names`."""

    kind: int
    segment: int
    slot: int
    body: bytearray
    names: list[str]

    def sealed(self, slots: dict[tuple[str, int], bytearray], chain: bytes) -> tuple[bytes, bytes]:
        """The bytes of the record, and its chain."""
        digests = [digest(bytes(slots.get((name, self.slot), b""))) for name in self.names]
        at = 4 if self.kind == 2 else len(self.body)  # bytes per item, digest, name
        payload = self.body[:at] + b"".join(digests) + self.body[at:]
        head = _HEAD.pack(len(payload) + _PLACE.size, self.kind)
        whole = bytes(head + _PLACE.pack(self.segment, self.slot) + payload)
        chain = digest(whole, chain)
        return whole + chain, chain


@dataclass
class Parts:
    """A pack: `pack.json`, its newest commit, and what that names.

    slots: the bytes of each segment by file and slot; tail: u32 position, u32 token, row.
    changed: values of the commit to be written instead of the right ones.
    """

    manifest: dict[str, Any]
    commit: dict[str, Any]
    hidden: bytearray
    records: list[Record]
    slots: dict[tuple[str, int], bytearray]
    tail: list[bytearray]
    centre: bytearray | None
    changed: dict[str, Any]

    @staticmethod
    def of(path: Path) -> Parts:
        """Take a sound pack without a parent apart."""
        folder = PackFolder(path)
        state = folder.state()
        records, slots = [], {}
        for plane, places in state.tables.places.items():
            item_bytes = state.tables.item_bytes.get(plane, 0)
            n, names = folder.part_bytes(plane, item_bytes), folder.names(plane)
            for segment, place in enumerate(places):
                for name in names:
                    data = (path / name).read_bytes()[place.slot * stride_of(n) :][:n]
                    slots[name, place.slot] = bytearray(data)
                ids = state.tokens[segment * 1024 : (segment + 1) * 1024]
                body = struct.pack("<1024I", *ids)
                if plane:
                    body = struct.pack("<I", item_bytes) + plane.encode()
                kind = 2 if plane else 1
                records.append(Record(kind, segment, place.slot, bytearray(body), names))
        ids = state.tokens[state.n_full * 1024 :]
        rows = [
            bytearray(_HEAD.pack(state.n_full * 1024 + i, token) + row.tobytes())
            for i, (token, row) in enumerate(zip(ids, state.rows, strict=True))
        ]
        assert state.hidden is not None
        mean = path / centre.NAME
        return Parts(
            json.loads((path / manifest.NAME).read_text()),
            {"sequence": 0, "n_tokens": len(state.tokens)},
            bytearray(state.hidden.tobytes()),
            records,
            slots,
            rows,
            bytearray(mean.read_bytes()) if mean.exists() else None,
            {},
        )

    def write(self, path: Path) -> None:
        """Write the pack to a new folder."""
        path.mkdir()
        for (name, slot), data in self.slots.items():
            with (path / name).open("r+b" if (path / name).exists() else "wb") as file:
                file.seek(slot * stride_of(len(data)))
                file.write(bytes(data).ljust(stride_of(len(data)), b"\0"))
        if self.centre is not None:
            (path / centre.NAME).write_bytes(self.centre)
            if isinstance(self.manifest.get("kv"), dict):
                self.manifest["kv"]["centre"] = digest(bytes(self.centre)).hex()
        self.manifest["check"] = _check(self.manifest)
        (path / manifest.NAME).write_text(json.dumps(self.manifest))
        chain, records = b"", []
        for record in self.records:
            data, chain = record.sealed(self.slots, chain)
            records.append(data)
        (path / log.NAME).write_bytes(b"".join(records))
        last, rows = b"", []
        for row in self.tail:
            last = digest(bytes(row), last)
            rows.append(bytes(row) + last)
        (path / tail.file_name(1)).write_bytes(b"".join(rows))
        place = {"epoch": 1, "n_bytes": sum(map(len, rows)), "chain": last.hex()}
        logged = {"log_bytes": sum(map(len, records)), "log_chain": chain.hex()}
        self._commit(path, {**self.commit, **logged, "tail": place})

    def _commit(self, path: Path, commit: dict[str, Any]) -> None:
        for name, value in self.changed.items():
            inner = commit["tail"] if name.startswith("tail.") else commit
            inner[name.removeprefix("tail.")] = value
        body = json.dumps(commit).encode()
        head = superblock._HEAD.pack(superblock._MAGIC, len(body), len(self.hidden))
        data = head + digest(body + self.hidden, head) + body + self.hidden
        (path / superblock.NAME).write_bytes(data)


def write_snapshot(path: Path, facts: dict[str, Any], content: bytes) -> None:
    """Write a snapshot of these facts and contents, with their checksums."""
    import xxhash

    said = {**facts, "digest": xxhash.xxh3_64(content).hexdigest()}
    body = json.dumps(said).encode()
    head = snapshot._HEAD.pack(snapshot._MAGIC, len(body))
    data = (head + digest(body, head) + body).ljust(snapshot._CONTENT, b"\0")
    (path / snapshot.NAME).write_bytes(data + content)


def read_snapshot(path: Path) -> tuple[dict[str, Any], bytes]:
    """The facts and the contents of a sound snapshot."""
    data = (path / snapshot.NAME).read_bytes()
    _, n = snapshot._HEAD.unpack_from(data)
    start = snapshot._HEAD.size + DIGEST
    return json.loads(data[start : start + n]), data[snapshot._CONTENT :]
