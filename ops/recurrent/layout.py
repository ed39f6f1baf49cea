"""The heads of a gated delta rule, and the shape of their states. Imports no Numba."""

from typing import NamedTuple

from ..errors import OpsError

COLUMNS = 16
"""Columns of a head's state that lie together: a vector of each of its rows."""


class DeltaHeads(NamedTuple):
    """n_keys heads of q and k with key_dim elements, n_values heads of v with value_dim elements.

    Each value head has a state and reads one key head: value head h reads key head h % n_keys if
    `cyclic` is not 0, else h // (n_values / n_keys).
    """

    n_keys: int
    n_values: int
    key_dim: int
    value_dim: int
    cyclic: int

    @property
    def row(self) -> int:
        """Floats of a token: q and k of all key heads, v of all value heads."""
        return 2 * self.n_keys * self.key_dim + self.n_values * self.value_dim

    @property
    def state_shape(self) -> tuple[int, int, int, int]:
        """Of the states, float32: S[i, 16 c + j] of value head h is at [h, c, i, j].

        Columns do not depend on each other. So a block of 16 stays in the first cache while all
        tokens of a prompt change it, and a token reads each in one run. Columns from value_dim on
        stay 0.
        """
        return self.n_values, -(-self.value_dim // COLUMNS), self.key_dim, COLUMNS

    def check(self) -> None:
        """Raise OpsError unless all sizes are positive and the key heads divide the value heads."""
        if min(self[:4]) < 1 or self.n_values % self.n_keys:
            raise OpsError(
                f"delta rule: {self.n_keys} key heads of {self.key_dim} and {self.n_values} value "
                f"heads of {self.value_dim}, expected positive sizes and as many value heads of "
                "each key head"
            )
