"""The vectors that matrices read."""

from __future__ import annotations

import torch

from ..errors import CudaOpsError


class Activations:
    """Up to `max_rows` vectors of `n_cols` numbers, for any number of `linear` calls.

    `set` only refers to the vectors: products of few tokens read them as they are. For more, they
    are rounded to f16 when the first matrix asks for it.
    """

    def __init__(self, max_rows: int, n_cols: int) -> None:
        if max_rows < 1 or n_cols < 1:
            raise CudaOpsError(
                f"making activations: found {max_rows} rows of {n_cols}, expected at least 1 of 1"
            )
        self.max_rows, self.n_cols = max_rows, n_cols
        self.x = torch.zeros((0, n_cols))
        self._halves: tuple[torch.Tensor, torch.Tensor] | None = None
        self._scratch: torch.Tensor | None = None

    def set(self, x: torch.Tensor) -> Activations:
        """Use x float32 (T, K), T <= max_rows; x must not change until the next `set`.

        Raises CudaOpsError for another type, shape or order of elements.
        """
        shape = tuple(x.shape)
        if len(shape) != 2 or shape[1] != self.n_cols or not 1 <= shape[0] <= self.max_rows:
            raise CudaOpsError(
                f"setting activations: found an array of shape {shape}, expected (T, "
                f"{self.n_cols}) with 1 <= T <= {self.max_rows}"
            )
        if x.dtype != torch.float32 or not x.is_contiguous():
            raise CudaOpsError(
                f"setting activations: found {x.dtype}"
                f"{'' if x.is_contiguous() else ' with gaps or in another order'},"
                " expected contiguous float32"
            )
        self.x = x
        self._halves = None
        return self

    def halves(self) -> tuple[torch.Tensor, torch.Tensor]:
        """x as f16 (T, K), each row times a power of two, and what its products are times, (T, 1).

        The largest |x| of a row comes to 2^13 .. 2^14: nothing overflows, and what f16 rounds to
        zero is below 2^-38 of the largest.
        """
        if self._halves is None:
            _, exponent = torch.frexp(self.x.abs().amax(1, keepdim=True))
            x = torch.ldexp(self.x, 14 - exponent).half()
            self._halves = x, torch.ldexp(torch.ones_like(self.x[:, :1]), exponent - 14)
        return self._halves

    def scratch(self, n_rows: int, n_cols: int) -> torch.Tensor:
        """Memory for f16 (n_rows, n_cols); allocated anew only to grow."""
        size = n_rows * n_cols
        if self._scratch is None or self._scratch.numel() < size:
            self._scratch = torch.empty(size, dtype=torch.float16, device=self.x.device)
        return self._scratch[:size].view(n_rows, n_cols)
