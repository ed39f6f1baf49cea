"""SimHash: bit i of a signature says on which side of a random hyperplane a vector lies.

    bit i = (plane_i . x > 0)

Two vectors at angle a agree in a bit with probability 1 - a / pi (Charikar 2002).

Signatures are stored on disk, in index columns of packs (`hash`) and in snapshots (`hashevict`),
and compared with those of later queries. So the planes are part of both formats: NumPy's default
generator, the seed, standard normal elements, and the order of drawing, each method's own.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from .api import Network

F32 = NDArray[np.float32]


def hyperplanes(
    head_dim: int, bits: int, seed: tuple[int, ...], drawn: Literal["by element", "by plane"]
) -> F32:
    """Random hyperplanes through the origin, float32 (E, bits).

    drawn: "by element", the first element of every plane before any second one (`hash`); or "by
    plane", one plane after the other (`hashevict`).
    """
    rng = np.random.default_rng(seed)
    if drawn == "by element":
        return rng.standard_normal((head_dim, bits)).astype(np.float32)
    return rng.standard_normal((bits, head_dim)).astype(np.float32).T


def simhash_network(planes: F32) -> Network:
    """The network of one layer, without bias, whose signatures are those of planes (E, bits).

    Signatures have 32 or 64 bits; those beyond the planes are 0.
    """
    n, bits = planes.shape
    lanes = 32 if bits <= 32 else 64
    weights = aligned((n + 1, lanes), np.float32)
    weights[:] = 0
    weights[:n, :bits] = planes
    return Network(weights.ravel(), (n, lanes))
