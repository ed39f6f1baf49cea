"""What a selective scan works on: its heads, their states and rows. Imports no Numba."""

from typing import NamedTuple

from ..errors import OpsError

COLUMNS = 16
"""Columns of a head's state that lie together: a vector of each of its rows."""


class ScanHeads(NamedTuple):
    """n_heads heads of x with head_dim elements; n_groups rows of B and C with state_size elements.

    Each head has a state; heads h of the group h // (n_heads / n_groups) read the same B and C.
    """

    n_heads: int
    head_dim: int
    n_groups: int
    state_size: int

    @property
    def inner(self) -> int:
        """Floats of a token's x: of all heads."""
        return self.n_heads * self.head_dim

    @property
    def row(self) -> int:
        """Floats of a token: x of all heads, B of all groups, C of all groups."""
        return self.inner + 2 * self.n_groups * self.state_size

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """Of the states, float32: S[i, 16 c + j] of head h is at [h, c, i, j].

        Columns, elements of x, do not depend on each other: a block of 16 stays in the first cache
        while all tokens of a prompt change it. Columns from head_dim on stay 0.
        """
        return self.n_heads, -(-self.head_dim // COLUMNS), self.state_size, COLUMNS

    def check(self) -> None:
        """Raise OpsError unless all sizes are positive and the groups divide the heads."""
        if min(self) < 1 or self.n_heads % self.n_groups:
            raise OpsError(
                f"selective scan: {self.n_heads} heads of {self.head_dim} in {self.n_groups} "
                f"groups with states of {self.state_size} rows, expected positive sizes and as "
                "many heads in each group"
            )


class ScanRows(NamedTuple):
    """Addresses of float32 arrays.

    xbc: (T, `ScanHeads.row`); dt: (T, heads); rates, bias, skip: (heads,); state: of
    `ScanHeads.state_shape`; out: (T, heads, head_dim).
    """

    xbc: int
    dt: int
    rates: int
    bias: int
    skip: int
    state: int
    out: int
