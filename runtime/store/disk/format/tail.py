"""The files `tail-N`: the tokens of the open segment, one record each, in the order of writing.

    record:  u32 position  |  u32 token id  |  row  |  8 bytes chain (digest, see log.py)
    row:     the token in all layers (store/rows.py): those that are stored whole, then those with
             a window

A record of position p cancels earlier records of p and later positions. Each file belongs to one
segment; the next segment begins a new file. A file is removed when no superblock names it any more.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np

from .....ops.arrays import U8
from ..errors import PackDamaged
from ..files import DIGEST, digest

NAMES = re.compile(r"tail-[0-9]+")
_HEAD = struct.Struct("<II")


def file_name(epoch: int) -> str:
    """The name of a tail file."""
    return f"tail-{epoch}"


def record_bytes(row_bytes: int) -> int:
    """Bytes of a record."""
    return _HEAD.size + row_bytes + DIGEST


def encode(rows: U8, tokens: list[int], first: int, chain: bytes) -> tuple[bytes, bytes]:
    """(records of tokens at positions first …, the last chain)."""
    parts = []
    for position, (token, row) in enumerate(zip(tokens, rows, strict=True), first):
        body = _HEAD.pack(position, token) + row.tobytes()
        chain = digest(body, chain)
        parts += [body, chain]
    return b"".join(parts), chain


def decode(
    data: bytes, row_bytes: int, base: int, n_tokens: int, last_chain: bytes, path: Path
) -> tuple[U8, list[int]]:
    """(rows (n, row_bytes), ids) of the `n_tokens` tokens from position `base` on.

    Raises `PackDamaged` if the records are not sound or do not hold those tokens.
    """
    size = record_bytes(row_bytes)
    chain = b""
    live: list[int] = []  # numbers of the valid records, by position
    if len(data) % size:
        raise PackDamaged(path, "the tail log is cut short")
    view = memoryview(data)
    for number in range(len(data) // size):
        record = view[number * size : (number + 1) * size]
        chain = digest(record[:-DIGEST], chain)
        position, _ = _HEAD.unpack_from(record)
        if record[-DIGEST:] != chain or not base <= position <= base + len(live):
            raise PackDamaged(path, f"the tail log is damaged: record {number} is not sound")
        del live[position - base :]
        live.append(number)
    if chain != last_chain or len(live) < n_tokens:
        raise PackDamaged(path, "the tail log does not end as its commit says")
    records = np.frombuffer(data, np.uint8).reshape(-1, size)[live[:n_tokens]]
    ids = records[:, 4:8].copy().view("<u4").ravel().tolist()
    return records[:, _HEAD.size : -DIGEST], ids
