"""The file `centre`: the mean keys that a pack's keys are stored without (`store.centre`).

    f32 [layer][kv head][element], little-endian; its digest is in `pack.json`

Written once, with the pack: another processor or version of kvarn may measure slightly different
means, and the same ones must be subtracted from all keys of a context.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .....ops.arrays import F32
from .. import files
from ..errors import PackDamaged
from .manifest import Manifest

NAME = "centre"


def encode(centre: F32) -> tuple[bytes, str]:
    """The bytes of the file, and their digest for `pack.json`."""
    data = centre.astype("<f4").tobytes()
    return data, files.digest(data).hex()


def decode(data: bytes, facts: Manifest, pack: Path) -> F32:
    """The mean keys, float32 (layers, J, E); `PackDamaged` if these are not the bytes written, or
    not finite."""
    if files.digest(data).hex() != facts.centre or len(data) != n_bytes(facts):
        raise PackDamaged(pack, f"{NAME} is damaged: it does not match its checksum")
    model = facts.model
    shape = model.n_layers, model.n_kv_heads, model.head_dim
    means = np.frombuffer(data, "<f4").reshape(shape).astype(np.float32)
    if not np.isfinite(means).all():
        raise PackDamaged(pack, f"{NAME} holds mean keys that are not finite")
    return means


def n_bytes(facts: Manifest) -> int:
    """Bytes of the file."""
    model = facts.model
    return 4 * model.n_layers * model.n_kv_heads * model.head_dim
