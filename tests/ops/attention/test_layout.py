"""Where bytes lie: sizes stated by the format, rows that never overlap, no Numba on import."""

import itertools

import pytest

from kvarn.ops.attention.layout import KV_TYPES, TileLayout, n_segments
from kvarn.ops.errors import OpsError

from ...programs import printed

DIMS = (8, 32, 33, 64, 80, 96, 128, 256, 512)
ALL = list(itertools.product(DIMS, KV_TYPES, KV_TYPES))


def test_sizes_of_the_format() -> None:
    assert TileLayout(64, "f16", "f16").tile_bytes == 4096
    assert TileLayout(64, "q8_0", "q8_0").tile_bytes == 2176
    assert TileLayout(64, "q4_0", "q4_0").tile_bytes == 1024 + 128
    assert TileLayout(64).segment_bytes(8) == 8 * 64 * 4096


@pytest.mark.parametrize(("head_dim", "k", "v"), ALL)
def test_every_byte_has_one_owner(head_dim: int, k: str, v: str) -> None:
    lay = TileLayout(head_dim, k, v)
    owners = [0] * lay.tile_bytes
    scales = {"f16": 0, "q8_0": 2 * lay.blocks, "q4_0": 2 * lay.blocks}
    for r in range(16):
        spans = [
            (r * lay.k_row_bytes, lay.k_row_bytes),
            (lay.v_offset + r * lay.v_row_bytes, lay.v_row_bytes),
            (lay.scale_offset + r * lay.scale_row_bytes, scales[k]),
            (lay.scale_offset + r * lay.scale_row_bytes + lay.v_scale, scales[v]),
        ]
        for first, n in spans:
            for i in range(first, first + n):
                owners[i] += 1
    assert max(owners) == 1
    assert owners.count(0) < 64  # only the padding to a cache line
    assert lay.tile_bytes % 64 == 0 and lay.padded % 32 == 0 and lay.padded >= head_dim
    assert lay.padded % lay.rotation == 0


def test_segments_that_hold_tokens() -> None:
    assert [n_segments(n) for n in (0, 1, 1024, 1025)] == [0, 1, 1, 2]


@pytest.mark.parametrize("bad", [{"head_dim": 7}, {"head_dim": 513}, {"k_type": "q5_0"}])
def test_refuses_in_words(bad: dict[str, object]) -> None:
    with pytest.raises(OpsError, match=r"use one of f16|8 to 512"):
        TileLayout(**{"head_dim": 64, **bad})  # type: ignore[arg-type]


def test_layout_needs_no_numba() -> None:
    code = "import sys; from kvarn.ops.attention import TileLayout; print('numba' in sys.modules)"
    assert printed(code).strip() == "False"
