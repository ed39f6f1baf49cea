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

from ....jit.arena import aligned
from ...arrays import F32, F64
from ...attention.layout import BLOCK, SEGMENT
from ...errors import OpsError

LANES = 16  # planes that are multiplied at a time
RUN = 16 * SEGMENT  # tokens that are sorted together
STEPS = 16384  # of the table of log weights
ID_BITS = 14  # of a token's number in its run; the others of an entry have the low bits of a code
_LEAST_P = 1e-6


@dataclass(frozen=True)
class Tables:
    """`number` (L) tables of codes of `bits` (K) bits; OpsError unless K is 4-16 and L 2-1000.

    The area of a KV head in a segment's column has codes until the run of 16 segments is full, and
    then `tables_each` of the run's tables, all of its tokens in each:

        open   [table][token]  u16 code
        full   [table]  [16,384 entries]  u16 (low bits of the code) << 14 | token of the run
                        [group]           u16 first entry of the group; one more for the last's end

    A group has all codes with the same high 14 bits, or fewer: the tokens with one code.
    """

    bits: int
    number: int

    def __post_init__(self) -> None:
        if not (4 <= self.bits <= 16 and 2 <= self.number <= 1000):
            raise OpsError(
                f"hash tables: {self.number} of {self.bits} bits, expected 2 to 1000 of 4 to 16"
            )

    @property
    def low_bits(self) -> int:
        """Bits of a code that its entry has; the others are the number of the group."""
        return max(0, self.bits - ID_BITS)

    @property
    def groups(self) -> int:
        """Groups of a table."""
        return 1 << (self.bits - self.low_bits)

    @property
    def tables_each(self) -> int:
        """How many of a full run's tables each of its segments holds."""
        return -(-self.number * SEGMENT // RUN)

    @property
    def table_bytes(self) -> int:
        """Bytes of a table of a full run, a multiple of 64."""
        return -(-2 * (RUN + self.groups + 1) // 64) * 64

    @property
    def item_bytes(self) -> int:
        """Bytes for each key, the groups' share included."""
        return max(2 * self.number, -(-self.tables_each * self.table_bytes // SEGMENT))

    @property
    def panels(self) -> int:
        """Panels of 16 planes."""
        return -(-self.bits * self.number // LANES)


def table_planes(head_dim: int, tables: Tables, seed: tuple[int, ...]) -> F32:
    """The planes of all tables in panels, float32 (panels, E, 16); those beyond K L are 0."""
    n = tables.bits * tables.number
    rows = np.zeros((tables.panels * LANES, head_dim), np.float32)
    rows[:n] = np.random.default_rng(seed).standard_normal((n, head_dim))
    planes: F32 = aligned((tables.panels, head_dim, LANES), np.float32)
    planes[:] = rows.reshape(tables.panels, LANES, head_dim).swapaxes(1, 2)
    return planes


@cache
def log_weight_table(tables: Tables) -> F32:
    """-log u by the cosine x of key and query, float32 (16385,).

    Entry i is of the x where i / 8192 = sqrt(1 - x), or 2 - sqrt(1 + x) below 0. The angle is a
    smooth function of that, even where x is near 1 or -1, and a square root is all it takes.
    """
    place = np.linspace(0.0, 2.0, STEPS + 1)
    cosine = np.where(place <= 1, 1 - place**2, (2 - place) ** 2 - 1)
    p = np.maximum(1 - np.arccos(cosine) / np.pi, _LEAST_P)
    values: F32 = (-_log_drawn(p, tables)).astype(np.float32)
    return values


def _log_drawn(p: F64, tables: Tables) -> F64:
    """log u; where L p^K is small, from the first terms of the binomial sum, which do not cancel:

    u = sum over m >= 2 of C(L, m) x^m (1 - x)^(L - m), x = p^K
    """
    x, n = p**tables.bits, tables.number
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
