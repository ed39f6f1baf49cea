"""The planes that codes are made of, and the probability that a token is drawn. Imports no Numba.

    code of table l: bit i = (plane_(l K + i) . x > 0), i < K
    drawn: the codes of query and key agree in at least 2 of the L tables
    p = 1 - angle / pi                                     that they agree in one bit
    u = 1 - (1 - p^K)^L - L p^K (1 - p^K)^(L - 1)          that the token is drawn

Source: MagicPIG, equation 10. The tables of keys are stored on disk, so the planes are part of the
format: NumPy's default generator, standard normal elements, one plane after the other.
"""

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from ....jit.arena import aligned
from ...attention.layout import BLOCK, SEGMENT
from ...errors import OpsError

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

LANES = 16  # planes that are multiplied at a time
STEPS = 8192  # of the table of log weights
_ID_BITS = 10  # of a token's number in its segment
_LOW_BITS = 16 - _ID_BITS  # of a code, at most, that an entry has room for
_FEWEST_GROUPS = 64  # unless there are fewer codes: 16 entries of a full segment in each
_LEAST_P = 1e-6


@dataclass(frozen=True)
class Tables:
    """`count` (L) tables of codes of `bits` (K) bits; OpsError unless K is 4-16 and L 2-1000.

    A full segment of a KV head is stored sorted, an open one as codes:

        open  [table][token]  u16 code
        full  [table][entry]  u16 (low bits of the code) << 10 | token, in the order of its groups
              [table][group]  u16 first entry of the group; one more for the end of the last

    A group has all codes with the same high bits.
    """

    bits: int
    count: int

    def __post_init__(self) -> None:
        if not (4 <= self.bits <= 16 and 2 <= self.count <= 1000):
            raise OpsError(
                f"hash tables: {self.count} of {self.bits} bits, expected 2 to 1000 of 4 to 16"
            )

    @property
    def low_bits(self) -> int:
        """Bits of a code that its entry has; the others are the number of the group."""
        groups = min(1 << self.bits, max(_FEWEST_GROUPS, 1 << max(0, self.bits - _LOW_BITS)))
        return self.bits - groups.bit_length() + 1

    @property
    def groups(self) -> int:
        """Groups of a table."""
        return 1 << (self.bits - self.low_bits)

    @property
    def item_bytes(self) -> int:
        """Bytes for each key, the groups' share included."""
        return -(-self.count * 2 * (SEGMENT + self.groups + 1) // SEGMENT)

    @property
    def panels(self) -> int:
        """Panels of 16 planes."""
        return -(-self.bits * self.count // LANES)


def table_planes(head_dim: int, tables: Tables, seed: tuple[int, ...]) -> F32:
    """The planes of all tables in panels, float32 (panels, E, 16); those beyond K L are 0."""
    n = tables.bits * tables.count
    rows = np.zeros((tables.panels * LANES, head_dim), np.float32)
    rows[:n] = np.random.default_rng(seed).standard_normal((n, head_dim))
    planes: F32 = aligned((tables.panels, head_dim, LANES), np.float32)
    planes[:] = rows.reshape(tables.panels, LANES, head_dim).swapaxes(1, 2)
    return planes


@cache
def log_weight_table(tables: Tables) -> F32:
    """-log u at p = i / 8192, i = 0 to 8192, float32 (8193,); p is at least 1e-6."""
    p = np.maximum(np.linspace(0.0, 1.0, STEPS + 1), _LEAST_P)
    values: F32 = (-_log_drawn(p, tables)).astype(np.float32)
    return values


def _log_drawn(p: F64, tables: Tables) -> F64:
    """log u; where L p^K is small, from the first terms of the binomial sum, which do not cancel:

    u = sum over m >= 2 of C(L, m) x^m (1 - x)^(L - m), x = p^K
    """
    x, n = p**tables.bits, tables.count
    few = n * x < 1e-2
    with np.errstate(divide="ignore"):
        none = n * np.log1p(-x)
        rest = np.exp(none) + n * x * np.exp((n - 1) * np.log1p(-np.minimum(x, 1 - 1e-16)))
        many: F64 = np.log1p(-np.where(few, 0.0, rest))
    term, total = np.ones_like(x), np.zeros_like(x)  # of C(L, m) x^(m - 2) (1 - x)^(L - m)
    term = n * (n - 1) / 2 * (1 - x) ** (n - 2)
    small = np.where(few, x, 0.0)
    for m in range(2, min(n, 8) + 1):
        total = total + term
        term = term * (n - m) / (m + 1) * small / (1 - small)
    with np.errstate(divide="ignore"):
        return np.where(few, 2 * np.log(x) + np.log(total), many)


@dataclass(frozen=True, eq=False)
class Hashing:
    """What the keys of one layer are hashed with.

    planes: of `table_planes`; centre float32 (J, E), taken off keys before.
    """

    tables: Tables
    planes: F32
    centre: F32

    def __post_init__(self) -> None:
        panels, head_dim, lanes = shape = self.planes.shape
        if (panels, lanes) != (self.tables.panels, LANES) or self.planes.dtype != np.float32:
            raise OpsError(
                f"hash tables: planes are {self.planes.dtype} {shape}, expected float32 "
                f"{(self.tables.panels, head_dim, LANES)}"
            )
        if self.centre.shape[1:] != (head_dim,) or self.centre.dtype != np.float32:
            raise OpsError(
                f"hash tables: the centre is {self.centre.dtype} {self.centre.shape}, expected "
                f"float32 (KV heads, {head_dim})"
            )

    @cached_property
    def padded(self) -> F32:
        """The centre, with zeros up to a multiple of 32 elements: as rows are stored."""
        return np.pad(self.centre, ((0, 0), (0, -self.centre.shape[1] % BLOCK)))
