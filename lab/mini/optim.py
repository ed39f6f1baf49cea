"""Muon: momentum whose matrix updates are made orthogonal, in float32 and batched by shape."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# Quintic Newton-Schulz coefficients of Muon (K. Jordan, 2024, kellerjordan.github.io/posts/muon):
# singular values go to 0.7..1.2 in five steps.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_STEPS = 5


def orthogonalise(g: Tensor) -> Tensor:
    """U V^T of each matrix of g = U S V^T, float32 [n, rows, cols], approximately."""
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """p <- (1 - lr * decay) p - lr * sqrt(max(1, rows / cols)) * orthogonalise(nesterov(g))."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                by_shape: dict[torch.Size, list[Tensor]] = {}
                for p in group["params"]:
                    by_shape.setdefault(p.shape, []).append(p)
                for params in by_shape.values():
                    self._update(params, group)

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """One step of all parameters of one shape."""
        lr, momentum = group["lr"], group["momentum"]
        updates = []
        for p in params:
            state = self.state[p]
            if not state:
                state["velocity"] = torch.zeros_like(p)
            velocity = state["velocity"].lerp_(p.grad, 1 - momentum)
            updates.append(p.grad.lerp(velocity, momentum))  # type: ignore[union-attr]
        rows, cols = params[0].shape
        rate = lr * max(1.0, rows / cols) ** 0.5
        for p, u in zip(params, orthogonalise(torch.stack(updates)), strict=True):
            p.mul_(1 - lr * group["weight_decay"]).add_(u, alpha=-rate)
