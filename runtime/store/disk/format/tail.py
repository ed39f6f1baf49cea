"""The files `tail-N`: the tokens of the open segment, one record each, in the order of writing.

    record:  u32 position  |  u32 token id  |  row  |  8 bytes chain (digest, see log.py)
    row:     [layer][kv head][K row][V row][scale row]: the token's bytes of each tile (layout.py)

A record of position p cancels earlier records of p and later positions. Each file belongs to one
segment; the next segment begins a new file. A file is removed when no superblock names it any more.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .....ops.attention.layout import TILE, TILES, TileLayout
from ..errors import PackDamaged
from ..files import DIGEST, digest

U8 = NDArray[np.uint8]
NAMES = re.compile(r"tail-[0-9]+")
_HEAD = struct.Struct("<II")


def file_name(epoch: int) -> str:
    """The name of a tail file."""
    return f"tail-{epoch}"


class Rows:
    """Copies tokens between a segment's tiles and rows with all of a token's bytes, all layers."""

    def __init__(self, layout: TileLayout, n_layers: int, n_kv_heads: int) -> None:
        k, v, scale = layout.k_row_bytes, layout.v_row_bytes, layout.scale_row_bytes
        # (start in the tile, bytes of a row, start in the token's row) of K, V and scales
        self._parts = ((0, k, 0), (layout.v_offset, v, k), (layout.scale_offset, scale, k + v))
        self._head_bytes, self._tile_bytes = k + v + scale, layout.tile_bytes
        self._heads = n_layers * n_kv_heads
        self.n_bytes = self._heads * self._head_bytes

    def gather(self, segment: U8, first: int, last: int) -> U8:
        """Rows (n, n_bytes) of tokens first … last - 1 of a segment, uint8 of all its bytes."""
        rows = np.empty((last - first, self._heads, self._head_bytes), np.uint8)
        tiles, places = np.divmod(np.arange(first, last), TILE)
        for part, at in self._views(segment):
            rows[:, :, at : at + part.shape[-1]] = part[:, tiles, places].swapaxes(0, 1)
        return rows.reshape(last - first, self.n_bytes)

    def scatter(self, rows: U8, segment: U8) -> None:
        """Write rows (n, n_bytes) as tokens 0 … n - 1 of a segment."""
        heads = rows.reshape(len(rows), self._heads, self._head_bytes)
        tiles, places = np.divmod(np.arange(len(rows)), TILE)
        for part, at in self._views(segment):
            part[:, tiles, places] = heads[:, :, at : at + part.shape[-1]].swapaxes(0, 1)

    def _views(self, segment: U8) -> list[tuple[U8, int]]:
        """(heads, tiles, 16, bytes) of each kind of row that the types have."""
        tiles = segment.reshape(self._heads, TILES, self._tile_bytes)
        return [
            (tiles[:, :, start : start + TILE * n].reshape(self._heads, TILES, TILE, n), at)
            for start, n, at in self._parts
            if n
        ]


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
