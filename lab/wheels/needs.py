"""The models whose kernels a wheel has: small files of random weights, with the types of weights
and the heads of real models.

Kernels of matrices depend on the type of the weights alone, those of attention on heads and KV
types alone. So each is compiled by a model of its own. Query heads that share a KV head are
computed in rounds of up to four, and a choice in passes of up to four heads: groups of 5 to 8 use
the kernels of groups of 1 to 4. Heads of 80 and 96 use the same kernels, padded to 96. Kernels that
choose by signatures depend on their bits, too: 32 by default, 64 of learned encoders, which decide
what `--prefill sparse` does. So the models for heads have encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import walk_packages

import numpy as np

from kvarn import ops
from kvarn.jit.launch import LazyKernel
from kvarn.ops.attention.layout import KV_TYPES
from kvarn.runtime.attend.auto import Auto
from kvarn.runtime.attend.encoders.networks import Dense, Learned, LearnedLayer
from kvarn.runtime.attend.encoders.sidecar import sidecar_path, write_sidecar
from kvarn.runtime.attend.hash import SIMHASH, Hash
from kvarn.runtime.attend.topk import TopK
from kvarn.runtime.gguf import open_gguf
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.loading.fingerprint import fingerprint
from kvarn.runtime.prefill import PREFILLS
from kvarn.runtime.rehearsal import Rehearsal, all_rehearsals, rehearsals
from lab.peers.model import Shape, write_model

WEIGHTS = "q4_k_m q4_1 q8_0 q5_0 q6_k q5_k q4_0 f16 bf16 iq4_nl iq4_xs mxfp4 q5_1 q3_k q2_k".split()
"""Types of most matrices; the embedding of quantised ones is Q6_K (`lab.peers.model`)."""
EXPERTS = "q4_k_m q8_0 mxfp4".split()
HEADS = [
    *((64, 3), (256, 4), (64, 4), (128, 4), (128, 2), (64, 1), (128, 1), (128, 3), (64, 2)),
    *((256, 2), (256, 1), (96, 1), (96, 4), (96, 2), (96, 3), (256, 3)),
]
"""Head sizes and query heads of a KV head, those of the most common models first."""
LEARNED_BITS = 64
"""Of the signatures that `kvarn learn` makes by default."""

_SMALL = Shape(n_layers=2, n_embd=256, n_heads=12, n_kv_heads=4, head_dim=64, n_ff=512, n_vocab=512)
_F16 = "f16", "f16"
Task = Callable[[], None]


def tasks(folder: Path, n_weights: int, n_heads: int) -> Iterator[Task]:
    """Short runs that compile all kernels of a wheel. The models are written to `folder`.

    n_weights, n_heads: how many of `WEIGHTS` and `HEADS` to take; with all of them, also experts
    and all methods of the default model.
    """
    yield from rehearsals(default_model_path(), _F16)
    yield _all_without_parameters
    for mix in WEIGHTS[:n_weights]:
        yield from rehearsals(_model(folder, f"weights-{mix}", mix, _SMALL), _F16)
    for (head, group), kv in product(HEADS[:n_heads], KV_TYPES):
        yield from _of_heads(_heads_model(folder, head, group), (kv, kv))
    if (n_weights, n_heads) < (len(WEIGHTS), len(HEADS)):
        return
    for mix in EXPERTS:
        shape = replace(_SMALL, n_experts=4, n_used=2)
        yield from rehearsals(_model(folder, f"experts-{mix}", mix, shape), _F16)
    yield from all_rehearsals(default_model_path(), [_F16])


def _of_heads(path: Path, kv: tuple[str, str]) -> list[Rehearsal]:
    """What commands do with their defaults and those of sparse methods and prefills."""
    prefills = [one for method in PREFILLS.values() for one in method.variants()]
    return rehearsals(path, kv, [Auto(), TopK(), Hash(), Hash(encoders=SIMHASH)], [], prefills)


def _heads_model(folder: Path, head: int, group: int) -> Path:
    shape = replace(_SMALL, n_heads=2 * group, n_kv_heads=2, head_dim=head)
    path = _model(folder, f"heads-{head}-{group}", "q8_0", shape)
    if not (beside := sidecar_path(path)).exists():
        write_sidecar(beside, _encoders(path, shape), "llama")
    return path


def _encoders(path: Path, shape: Shape) -> Learned:
    """Linear encoders with random weights."""
    rng = np.random.default_rng(0)

    def dense(n_heads: int) -> tuple[Dense]:
        weight = rng.standard_normal((n_heads, LEARNED_BITS, shape.head_dim))
        return (Dense(weight.astype(np.float16), np.zeros((n_heads, LEARNED_BITS), np.float32)),)

    layer = LearnedLayer(dense(shape.n_heads), dense(shape.n_kv_heads))
    with open_gguf(path) as file:
        layers = dict.fromkeys(range(shape.n_layers), layer)
        return Learned(LEARNED_BITS, 0, 1, fingerprint(file), path.stem, layers)


def _model(folder: Path, name: str, mix: str, shape: Shape) -> Path:
    if not (path := folder / f"{name}.gguf").exists():
        write_model(path, mix, shape)
    return path


def _all_without_parameters() -> None:
    """Kernels that exist once, whatever the model."""
    for info in walk_packages(ops.__path__, f"{ops.__name__}."):
        for value in vars(import_module(info.name)).values():
            if isinstance(value, LazyKernel) and not value._parameters:
                _ = value.address
