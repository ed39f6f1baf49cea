"""The file `centre`: what the pack's keys are stored without (`store.centre`), written once.

    f32 [layer][kv head][element], little-endian; its digest stands in `pack.json`

A pack keeps its own: another processor or a later kvarn may measure a mean that differs a little,
and all keys of a context have to lack the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .. import files
from ..errors import PackDamaged
from .manifest import Manifest

NAME = "centre"


def encode(centre: NDArray[np.float32]) -> tuple[bytes, str]:
    """The bytes of the file, and what `pack.json` says of them."""
    data = centre.astype("<f4").tobytes()
    return data, files.digest(data).hex()


def decode(data: bytes, facts: Manifest, pack: Path) -> NDArray[np.float32]:
    """Float32 (layers, J, E) of the file's bytes; `PackDamaged` for others than were written."""
    if files.digest(data).hex() != facts.centre or len(data) != n_bytes(facts):
        raise PackDamaged(pack, f"{NAME} is damaged: it does not fit its checksum")
    model = facts.model
    shape = model.n_layers, model.n_kv_heads, model.head_dim
    return np.frombuffer(data, "<f4").reshape(shape).astype(np.float32)


def n_bytes(facts: Manifest) -> int:
    """Bytes of the file."""
    model = facts.model
    return 4 * model.n_layers * model.n_kv_heads * model.head_dim
