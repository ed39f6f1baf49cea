"""A model's tensors: checked against its configuration, and prepared for the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from ..jit.arena import Arena
from ..ops.cpu import CPU
from ..ops.device import Array, Device, Weight
from ..ops.reference.quants import dequantise
from .config import ModelConfig
from .errors import ModelError
from .tensors import TensorLike

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Linear:
    """y = x W^T + bias."""

    weight: Weight
    bias: Array | None


@dataclass(frozen=True)
class LayerWeights:
    """The tensors of one layer, by their GGUF names; None where the architecture has none."""

    attn_norm: Array
    attn_q: Linear
    attn_k: Linear
    attn_v: Linear
    attn_output: Linear
    ffn_gate: Linear
    ffn_up: Linear
    ffn_down: Linear
    ffn_norm: Array | None
    attn_q_norm: Array | None
    attn_k_norm: Array | None
    post_attention_norm: Array | None
    post_ffw_norm: Array | None


@dataclass(frozen=True)
class Weights:
    """All tensors of a model, in the memory of a device, ready for `Transformer`."""

    device: Device
    token_embd: Weight
    output_norm: Array
    output: Linear
    layers: tuple[LayerWeights, ...]
    rope_freqs: F32 | None
    """Divisors of rope's frequencies, (n_rot/2,)."""
    rope_short: F32 | None
    rope_long: F32 | None
    """Divisors for contexts up to `n_ctx_orig`, and for longer ones."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the matrices that one token reads, without its row of `token_embd`."""
        parts = [self.output, *(part for layer in self.layers for part in vars(layer).values())]
        return sum(part.weight.n_bytes for part in parts if isinstance(part, Linear))

    @staticmethod
    def load(
        tensors: Mapping[str, TensorLike],
        config: ModelConfig,
        arena: Arena | None = None,
        device: Device | None = None,
    ) -> Weights:
        """Check every tensor's name and shape, and prepare the matrices for a device (the CPU).

        Repacked matrices go to `arena`, which should have `repacked_bytes(tensors)`. Raises a
        `ModelError` that names a tensor which is missing, has another shape, or is unknown to the
        architecture (to ignore it might change the result).
        """
        # Checks all tensors before one of them takes memory, or the time to encode it anew.
        _Loader(tensors, config, Arena(), cast("Device", _Checked())).load()
        return _Loader(tensors, config, arena or Arena(), device or CPU).load()


class _Checked:
    """Stands in for a `Device` while the loader only checks; keeps nothing."""

    is_copy = False

    def weight(self, *_: object) -> _Checked:
        return self

    def put(self, values: F32) -> F32:
        return values


class _Loader:
    def __init__(
        self,
        tensors: Mapping[str, TensorLike],
        config: ModelConfig,
        arena: Arena,
        device: Device,
    ) -> None:
        self._tensors = tensors
        self._config = config
        self._used: set[str] = set()
        self._arena, self._device = arena, device

    def load(self) -> Weights:
        config = self._config
        if not self._tensors:
            raise ModelError(
                "cannot load the model: the file holds no tensors, only metadata (a vocabulary "
                "alone?); expected a model's weights"
            )
        self._check_layers()
        embedding_shape = (config.n_vocab, config.n_embd)
        has_output = "output.weight" in self._tensors and not config.architecture.tied
        # A matrix of which only single rows are read stays as it is in the file.
        token_embd = self._matrix("token_embd.weight", embedding_shape, products=not has_output)
        rope_freqs = rope_short = rope_long = None
        if config.rope_tensors == "freqs":
            rope_freqs = self._factors("rope_freqs.weight")
        elif config.rope_tensors == "longrope":
            rope_short = self._factors("rope_factors_short.weight")
            rope_long = self._factors("rope_factors_long.weight")
        weights = Weights(
            device=self._device,
            token_embd=token_embd,
            output_norm=self._vector("output_norm.weight", config.n_embd),
            output=Linear(
                self._matrix("output.weight", embedding_shape) if has_output else token_embd,
                self._optional("output.bias", config.n_vocab),
            ),
            layers=tuple(self._layer(index) for index in range(config.n_layers)),
            rope_freqs=rope_freqs,
            rope_short=rope_short,
            rope_long=rope_long,
        )
        unknown = [name for name in self._tensors if name not in self._used]
        if unknown:
            raise ModelError(
                f"cannot load the model: tensor {unknown[0]!r:.80} is unknown to architecture "
                f"{config.architecture.name} ({len(unknown)} such tensors)"
            )
        return weights

    def _check_layers(self) -> None:
        """A file with too few layers is refused before any matrix takes memory."""
        for index in range(self._config.n_layers):
            self._tensor(f"blk.{index}.attn_norm.weight", (self._config.n_embd,))

    def _layer(self, index: int) -> LayerWeights:
        config, architecture = self._config, self._config.architecture
        prefix = f"blk.{index}"
        n_q = config.n_heads * config.head_dim
        attn_q, attn_k, attn_v = self._qkv(prefix)
        ffn_gate, ffn_up = self._gate_up(prefix)

        def norm(name: str, n: int, present: bool) -> Array | None:
            return self._vector(f"{prefix}.{name}.weight", n) if present else None

        return LayerWeights(
            attn_norm=self._vector(f"{prefix}.attn_norm.weight", config.n_embd),
            attn_q=attn_q,
            attn_k=attn_k,
            attn_v=attn_v,
            attn_output=self._linear(f"{prefix}.attn_output", config.n_embd, n_q),
            ffn_gate=ffn_gate,
            ffn_up=ffn_up,
            ffn_down=self._linear(f"{prefix}.ffn_down", config.n_embd, config.n_ff),
            ffn_norm=norm("ffn_norm", config.n_embd, not architecture.parallel),
            attn_q_norm=norm("attn_q_norm", config.head_dim, architecture.qk_norm),
            attn_k_norm=norm("attn_k_norm", config.head_dim, architecture.qk_norm),
            post_attention_norm=norm("post_attention_norm", config.n_embd, architecture.post_norms),
            post_ffw_norm=norm("post_ffw_norm", config.n_embd, architecture.post_norms),
        )

    def _qkv(self, prefix: str) -> tuple[Linear, ...]:
        """Query, key and value projections, from three tensors or from the rows of one."""
        config = self._config
        n_q, n_kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        parts = (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv))
        if f"{prefix}.attn_qkv.weight" not in self._tensors:
            return tuple(self._linear(f"{prefix}.{name}", n, config.n_embd) for name, n in parts)
        fused = self._split(f"{prefix}.attn_qkv", [n for _, n in parts])
        # A fused matrix may have separate biases.
        return tuple(
            Linear(part.weight, self._optional(f"{prefix}.{name}.bias", n))
            if part.bias is None
            else part
            for part, (name, n) in zip(fused, parts)
        )

    def _gate_up(self, prefix: str) -> tuple[Linear, ...]:
        n_ff = self._config.n_ff
        if self._config.architecture.fused_gate_up:
            return self._split(f"{prefix}.ffn_up", [n_ff, n_ff])
        names = (f"{prefix}.ffn_gate", f"{prefix}.ffn_up")
        return tuple(self._linear(name, n_ff, self._config.n_embd) for name in names)

    def _split(self, name: str, n_rows: list[int]) -> tuple[Linear, ...]:
        """Split a stored matrix into several, by rows."""
        n_cols = self._config.n_embd
        tensor = self._tensor(f"{name}.weight", (sum(n_rows), n_cols))
        bias = self._optional(f"{name}.bias", sum(n_rows))
        parts, first = [], 0
        for number, n in enumerate(n_rows):
            rows = slice(first, first + n)
            weight = self._device.weight(
                tensor.type, tensor.data[rows], n_cols, f"{name}.weight[{number}]", self._arena
            )
            parts.append(Linear(weight, None if bias is None else bias[rows]))
            first += n
        if all(part.weight.is_copy for part in parts):
            tensor.release()
        return tuple(parts)

    def _linear(self, name: str, n_rows: int, n_cols: int) -> Linear:
        weight = self._matrix(f"{name}.weight", (n_rows, n_cols))
        return Linear(weight, self._optional(f"{name}.bias", n_rows))

    def _matrix(self, name: str, shape: tuple[int, int], products: bool = True) -> Weight:
        tensor = self._tensor(name, shape)
        arena = self._arena if products else None
        weight = self._device.weight(tensor.type, tensor.data, shape[1], name, arena)
        if weight.is_copy:
            tensor.release()
        return weight

    def _optional(self, name: str, n: int) -> Array | None:
        return self._vector(name, n) if name in self._tensors else None

    def _factors(self, name: str) -> F32 | None:
        rotations = [layer.rope.n_rot for layer in self._config.layers if layer.rope is not None]
        n_rot = rotations[0] if rotations else self._config.head_dim
        if name not in self._tensors:
            return None
        factors = self._values(name, n_rot // 2)  # tables of angles are made on the host
        if not (np.isfinite(factors).all() and (factors != 0).all()):
            raise ModelError(
                f"cannot load the model: tensor {name} holds zeros or values that are not finite, "
                "expected divisors of frequencies"
            )
        return factors

    def _vector(self, name: str, n: int) -> Array:
        return self._device.put(self._values(name, n))

    def _values(self, name: str, n: int) -> F32:
        tensor = self._tensor(name, (n,))
        values = dequantise(tensor.type, tensor.data.reshape(1, -1)).reshape(n)
        return np.ascontiguousarray(values, np.float32)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> TensorLike:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelError(f"cannot load the model: tensor {name} is missing")
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"cannot load the model: tensor {name} has shape {tuple(tensor.shape)}, "
                f"expected {shape}"
            )
        self._used.add(name)
        return tensor
