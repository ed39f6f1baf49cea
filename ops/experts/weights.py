"""The matrices of experts, as kernels read them from the file's pages. Imports no Numba."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ..errors import OpsError
from .routing import Routing

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .. import device
    from ..linear.weight import Weight
    from ..types import QuantType
    from .arguments import Stacked

Activation = Literal["silu", "gelu", "clamped-silu", "relu-squared", "ungated-gelu"]
UNGATED: tuple[Activation, ...] = ("relu-squared", "ungated-gelu")


@dataclass(frozen=True, slots=True, eq=False)
class ExpertMatrix:
    """One matrix of each of `n_experts` experts: N rows of K weights, one expert after the other.

    Kernels read the file's bytes in the file's order, so that the system reads no page of an expert
    that no token chose, and may drop the pages of those that none chose for long. Types without
    kernels are re-encoded as Q8_0.
    """

    weight: Weight
    """All rows of all experts."""
    n_experts: int
    n_rows: int
    stacked: Stacked

    @classmethod
    def prepare(
        cls, type: QuantType, data: npt.NDArray[np.uint8], n_cols: int, name: str = ""
    ) -> ExpertMatrix:
        """Prepare a file's tensor, uint8 (n_experts, N, row_bytes(type, n_cols)).

        Raises OpsError if the bytes do not fit the shape or the type cannot be used.
        """
        from ..linear.weight import Weight
        from .arguments import Stacked

        if data.ndim != 3 or not data.shape[0] or not data.shape[1]:
            raise OpsError(
                f"preparing experts {name or '(unnamed)'}: found an array of shape {data.shape},"
                " expected (experts, rows, bytes of a row)"
            )
        n_experts, n_rows, _ = data.shape
        # Without an arena no type is repacked.
        weight = Weight.prepare(type, data.reshape(n_experts * n_rows, -1), n_cols, name)
        first, row_bytes, _ = weight.matrix
        return cls(weight, n_experts, n_rows, Stacked(first, n_rows * row_bytes, row_bytes, n_rows))

    def halves(self) -> tuple[ExpertMatrix, ExpertMatrix]:
        """The first and the second half of each expert's rows: gate and up of a fused tensor.

        Raises OpsError if the number of rows is odd.
        """
        n_rows, odd = divmod(self.n_rows, 2)
        if odd:
            raise OpsError(
                f"halving experts {self.name}: found {self.n_rows} rows, expected an even number"
            )
        first = self.stacked._replace(n_rows=n_rows)
        second = first._replace(data=first.data + n_rows * first.row_bytes)
        gate, up = (replace(self, n_rows=n_rows, stacked=part) for part in (first, second))
        return gate, up

    @property
    def name(self) -> str:
        """Its tensor's name."""
        return self.weight.name

    @property
    def n_cols(self) -> int:
        """K."""
        return self.weight.n_cols

    @property
    def n_bytes(self) -> int:
        """Bytes of all experts."""
        return self.n_experts * self.n_rows * self.stacked.row_bytes

    @property
    def is_copy(self) -> bool:
        """Whether products read other memory than the file's pages."""
        return self.weight.is_copy


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """The experts of a layer, on one device.

        y_e = down_e (f(gate_e x + gate_bias_e, up_e x + up_bias_e)) + down_bias_e

    f(g, u) is silu(g) u, gelu(g) u, or gpt-oss's (`pointwise.clamped_swiglu`); or, without gates,
    max(u, 0)^2 or gelu(u). gate and up have F rows of D weights, down D rows of F; gate_bias and
    up_bias are float32 (n_experts, F), down_bias (n_experts, D); choice_bias and scales
    (n_experts,), see `Routing`. Raises OpsError for shapes that do not fit together.
    """

    routing: Routing
    activation: Activation
    gate: device.ExpertMatrix | None
    up: device.ExpertMatrix
    down: device.ExpertMatrix
    gate_bias: Any = None
    up_bias: Any = None
    down_bias: Any = None
    choice_bias: Any = None
    scales: Any = None

    def __post_init__(self) -> None:
        n, width, n_ff = self.routing.n_experts, self.n_embd, self.n_ff
        if (self.gate is None) != (self.activation in UNGATED):
            found = "no gates" if self.gate is None else "gates"
            raise OpsError(f"preparing experts {self.up.name}: found {found} for {self.activation}")
        sizes = [(matrix, n_ff, width) for matrix in self.inner]
        for matrix, n_rows, n_cols in (*sizes, (self.down, width, n_ff)):
            shape = matrix.n_experts, matrix.n_rows, matrix.n_cols
            if shape != (n, n_rows, n_cols):
                raise self._refused(matrix.name, shape, (n, n_rows, n_cols))
        for name, expected in (
            ("gate_bias", (n, n_ff)),
            ("up_bias", (n, n_ff)),
            ("down_bias", (n, width)),
            ("choice_bias", (n,)),
            ("scales", (n,)),
        ):
            x = getattr(self, name)
            if x is not None and tuple(x.shape) != expected:
                raise self._refused(name, tuple(x.shape), expected)

    def _refused(self, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> OpsError:
        return OpsError(f"preparing experts {name}: found shape {shape}, expected {expected}")

    @property
    def n_embd(self) -> int:
        """D."""
        return self.down.n_rows

    @property
    def n_ff(self) -> int:
        """F, of one expert."""
        return self.inner[0].n_rows

    @property
    def inner(self) -> tuple[device.ExpertMatrix, ...]:
        """The matrices that x is multiplied by: gate and up, or up alone."""
        return (self.up,) if self.gate is None else (self.gate, self.up)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of matrices that one token reads."""
        stacks = *self.inner, self.down
        return sum(m.n_bytes // m.n_experts for m in stacks) * self.routing.n_used
