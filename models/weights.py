"""A model's tensors: checked against its configuration, and prepared for the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import cast

import numpy as np

from ..jit.arena import Arena
from ..ops.arrays import F32, U8
from ..ops.cpu import CPU
from ..ops.device import Device, Weight
from ..ops.experts import ExpertWeights
from .config import ModelConfig
from .errors import ModelError
from .feed_forwards import FeedForwardWeights, load_feed_forward
from .loader import Linear, Loader, Norm
from .low_rank import Adapters
from .mixers import MixerWeights, load_mixers
from .mixers.attention import AttentionWeights
from .mixers.latent import LatentWeights
from .per_layer import PerLayerEmbedding, PerLayerWeights
from .tensors import TensorLike


@dataclass(frozen=True)
class LayerWeights:
    """The parts of one layer; None where the architecture, or the layer, has no such part."""

    mixers: tuple[MixerWeights, ...]
    post_attention_norm: Norm | None
    ffn_norm: Norm | None
    feed_forward: FeedForwardWeights | None
    post_ffw_norm: Norm | None
    per_layer: PerLayerWeights | None
    output_scale: float
    """Factor on the layer's output."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """What models that generate and text encoders have: an embedding and layers, in the memory of a
    device."""

    device: Device
    token_embd: Weight
    layers: tuple[LayerWeights, ...]
    norms: tuple[Norm | None, ...]
    """Of each layer's input, and of the last one's output; None: it is not normed."""
    rope_freqs: F32 | None = None
    """Divisors of rope's frequencies, (n_rot/2,)."""
    rope_short: F32 | None = None
    rope_long: F32 | None = None
    """Divisors for contexts up to `n_ctx_orig`, and for longer ones."""


@dataclass(frozen=True, kw_only=True)
class Weights(Stack):
    """All tensors of a model that generates, ready for `Transformer`."""

    output: Linear
    per_layer: PerLayerEmbedding | None

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the matrices that one token reads, without its row of `token_embd`."""
        parts = [(layer.mixers, layer.feed_forward, layer.per_layer) for layer in self.layers]
        whole = self.output, self.per_layer and self.per_layer.model_proj
        return sum(_read_bytes(part) for layer in (whole, *parts) for part in layer)

    @property
    def sink_logits(self) -> tuple[F32 | None, ...]:
        """float32 (H,) on the host, of each layer with attention; None where it has none."""
        mixers = (mixer for layer in self.layers for mixer in layer.mixers)
        attention = (m for m in mixers if isinstance(m, AttentionWeights | LatentWeights))
        return tuple(m.sinks if isinstance(m, AttentionWeights) else None for m in attention)

    @staticmethod
    def load(
        tensors: Mapping[str, TensorLike],
        config: ModelConfig,
        arena: Arena | None = None,
        device: Device | None = None,
        adapters: Adapters | None = None,
    ) -> Weights:
        """Check every tensor's name and shape, and prepare the matrices for a device (the CPU).

        Repacked matrices go to `arena`, which should have `repacked_bytes(tensors)`. Raises a
        `ModelError` that names a tensor which is missing, has another shape, or is unknown to the
        architecture (to ignore it might change the result). adapters: what low-rank adapters add
        to matrices, which has their shapes; a `ModelError` names one that is no projection.
        """
        # Checks all tensors before one of them takes memory, or the time to encode it anew.
        device = device or CPU
        checked = cast("Device", _CheckingDevice(device))
        _load(Loader(tensors, Arena(), checked, adapters), config, len(tensors))
        return _load(Loader(tensors, arena or Arena(), device, adapters), config, len(tensors))


class _CheckingDevice:
    """Stands in for a `Device` while the loader only checks; keeps nothing."""

    is_copy = False

    def __init__(self, device: Device) -> None:
        self._device = device

    def expert_matrix(self, _: object, data: U8, n_cols: int, name: str) -> _CheckedExperts:
        self._device.check_experts(name)
        n_experts, n_rows, _ = data.shape
        return _CheckedExperts(name, n_experts, n_rows, n_cols)

    def weight(self, *_: object) -> _CheckingDevice:
        return self

    def low_rank(self, *_: object) -> _CheckingDevice:
        return self

    def put(self, values: F32) -> F32:
        return values


@dataclass(frozen=True)
class _CheckedExperts:
    name: str
    n_experts: int
    n_rows: int
    n_cols: int
    is_copy = False

    def halves(self) -> tuple[_CheckedExperts, _CheckedExperts]:
        half = replace(self, n_rows=self.n_rows // 2)
        return half, half


def _read_bytes(part: object) -> int:
    """Bytes of a part's matrices that one token reads."""
    if isinstance(part, Linear):
        return part.weight.n_bytes + (part.adapter.n_bytes if part.adapter else 0)
    if isinstance(part, ExpertWeights):
        return part.bytes_per_token
    values = vars(part) if is_dataclass(part) else part
    if isinstance(values, dict):
        values = tuple(values.values())
    return sum(map(_read_bytes, values)) if isinstance(values, tuple) else 0


def _load(loader: Loader, config: ModelConfig, n_tensors: int) -> Weights:
    if not n_tensors:
        raise ModelError(
            "cannot load the model: the file holds no tensors, only metadata (a vocabulary "
            "alone?); expected a model's weights"
        )
    first = "attn_norm" if config.architecture.pre_norms else "post_attention_norm"
    for index in range(config.n_layers):  # too few layers: refused before a matrix takes memory
        loader.tensor(f"blk.{index}.{first}.weight", (config.n_embd,))
    embedding_shape = (config.n_vocab, config.n_embd)
    has_output = "output.weight" in loader and not config.architecture.tied
    # A matrix of which only single rows are read stays as it is in the file.
    token_embd = loader.matrix("token_embd.weight", embedding_shape, products=not has_output)
    freqs, longrope = config.rope_tensors == "freqs", config.rope_tensors == "longrope"
    weights = Weights(
        device=loader.device,
        token_embd=token_embd,
        output=Linear(
            loader.matrix("output.weight", embedding_shape) if has_output else token_embd,
            loader.optional("output.bias", config.n_vocab),
            loader.adapters.low_rank("output.weight", slice(config.n_vocab))
            if has_output
            else None,
        ),
        norms=load_norms(loader, config),
        layers=load_layers(loader, config),
        per_layer=PerLayerEmbedding.load(loader, config) if config.n_embd_per_layer else None,
        rope_freqs=_factors(loader, config, "rope_freqs.weight") if freqs else None,
        rope_short=_factors(loader, config, "rope_factors_short.weight") if longrope else None,
        rope_long=_factors(loader, config, "rope_factors_long.weight") if longrope else None,
    )
    loader.adapters.check_used()
    if "cls.output.weight" in loader:  # of a reranker, which `runtime.embedding` reads
        loader.ignore("cls.output.weight")
    drafting = tuple(f"blk.{config.n_layers + i}." for i in range(config.n_drafting))
    loader.check_used(config.architecture.name, drafting)
    return weights


def load_norms(
    loader: Loader, config: ModelConfig, *, optional: bool = False
) -> tuple[Norm | None, ...]:
    """`Stack.norms`. optional: the first layer's input may have none."""
    blocks = [f"blk.{index}" for index in range(config.n_layers)]
    if config.architecture.adds_to_normed:
        names = ["token_embd_norm", *(f"{block}.layer_output_norm" for block in blocks)]
    else:
        names = [*(f"{block}.attn_norm" for block in blocks), config.architecture.output_norm]
    missing = 0 if config.architecture.pre_norms else config.n_layers
    if optional and f"{names[0]}.weight" not in loader:
        missing = 1
    return *[None] * missing, *(loader.norm(name, config.n_embd) for name in names[missing:])


def load_layers(loader: Loader, config: ModelConfig) -> tuple[LayerWeights, ...]:
    """`Stack.layers`."""
    return tuple(_layer(loader, config, index) for index in range(config.n_layers))


def _layer(loader: Loader, config: ModelConfig, index: int) -> LayerWeights:
    architecture, prefix, layer = config.architecture, f"blk.{index}", config.layers[index]
    whole = bool(layer.mixers) and layer.feed_forward is not None

    def norm(name: str, present: bool) -> Norm | None:
        return loader.norm(f"{prefix}.{name}", config.n_embd) if present else None

    parallel = architecture.parallel == "always"
    if architecture.parallel == "without ffn_norm":
        parallel = f"{prefix}.{architecture.ffn_norm}.weight" not in loader
    return LayerWeights(
        mixers=load_mixers(loader, prefix, config, layer),
        post_attention_norm=norm("post_attention_norm", architecture.post_norms),
        ffn_norm=norm(architecture.ffn_norm, whole and architecture.pre_norms and not parallel),
        feed_forward=load_feed_forward(loader, prefix, config, layer),
        post_ffw_norm=norm("post_ffw_norm", architecture.post_norms),
        per_layer=PerLayerWeights.load(loader, prefix, config) if config.n_embd_per_layer else None,
        output_scale=_output_scale(loader, f"{prefix}.layer_output_scale.weight", config),
    )


def _output_scale(loader: Loader, name: str, config: ModelConfig) -> float:
    if not config.architecture.output_scale or name not in loader:
        return 1.0
    scale = float(loader.values(name, 1)[0])
    if not np.isfinite(scale):
        raise ModelError(f"cannot load the model: tensor {name} is {scale}, expected a number")
    return scale


def _factors(loader: Loader, config: ModelConfig, name: str) -> F32 | None:
    if name not in loader:
        return None
    ropes = [layer.rope for layer in config.kv_layers]
    rotations = [rope.n_rot for rope in ropes if rope is not None and rope.factors]
    n_rot = rotations[0] if rotations else config.head_dim
    factors = loader.values(name, n_rot // 2)  # tables of angles are made on the host
    if not (np.isfinite(factors).all() and (factors != 0).all()):
        raise ModelError(
            f"cannot load the model: tensor {name} holds zeros or values that are not finite, "
            "expected divisors of frequencies"
        )
    return factors
