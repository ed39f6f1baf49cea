"""How fast this machine is, measured in seconds, and what a model's sizes make of that.

Estimates: a token reads its weights and keys and values once, at the speed of the kernels that read
them; a prompt multiplies each weight with each token, and each token with those before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...models.config import ModelConfig

MEASURED = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0")
"""Types of weights whose kernels are measured; others count as Q8_0."""
_BUFFER = 64 << 20
_ROWS = 1024


@dataclass(frozen=True)
class Speeds:
    """weights, kv: bytes per second that a token reads; products: operations per second of prompts
    with the weights, a product and a sum being two; attention: the same of keys and queries."""

    weights: float
    kv: float
    products: float
    attention: float

    def token_seconds(self, weight_bytes: float, kv_bytes: float) -> float:
        """Seconds for one generated token."""
        return weight_bytes / self.weights + kv_bytes / self.kv

    def prompt_seconds(self, config: ModelConfig, n_weights: float, n_tokens: int) -> float:
        """Seconds to read `n_tokens` exactly. n_weights: those that one token multiplies."""
        pairs = 0.0
        for layer in config.attention_layers:
            window = min(layer.window or n_tokens, n_tokens)
            seen = window * n_tokens - window * window / 2
            pairs += seen * layer.n_heads * layer.head_dim
        return 2 * n_weights * n_tokens / self.products + 4 * pairs / self.attention


def speeds(weight_type: str, kv_type: str) -> Speeds:
    """Measure this machine, in a few seconds; a first use also compiles kernels."""
    from ...ops import measure

    name = weight_type if weight_type in MEASURED else "Q8_0"
    return Speeds(
        measure.matvec(name, _BUFFER),
        measure.attention(kv_type),
        measure.matmul(name, n_rows=_ROWS)[0],
        measure.matmul("F16", n_rows=_ROWS)[0],
    )
