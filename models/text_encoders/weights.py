"""A text encoder's tensors, checked against its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...jit.arena import Arena
from ...ops.arrays import F32
from ...ops.device import Device
from ..config.text_encoders import TextEncoderConfig
from ..errors import ModelError
from ..loader import Linear, Loader, Norm
from ..tensors import TensorLike
from ..weights import Stack, load_layers, load_norms

_UNROUNDED = ("attn_v", "attn_output", "ffn_up", "dense_2", "dense_3")
"""Of Q8_0, rounding activations to 8 bits costs vectors more than the weights' own rounding does,
and most of that in these matrices."""


@dataclass(frozen=True)
class Classifier:
    """What makes scores of a pair's first hidden state: output(tanh(dense x))."""

    dense: Linear | None
    output: Linear | None


@dataclass(frozen=True, kw_only=True)
class TextEncoderWeights(Stack):
    """All tensors of a text encoder, in the memory of a device."""

    position_embd: F32 | None
    """float32 (n_ctx, D) on the host."""
    token_types: F32 | None
    """float32 (types, D) on the host."""
    token_embd_norm: Norm | None
    """Where it is not that of the first layer's input."""
    classifier: Classifier | None
    dense: tuple[Linear, ...]
    """What makes a vector of the pooled one, one after the other."""

    @staticmethod
    def load(
        tensors: Mapping[str, TensorLike], config: TextEncoderConfig, arena: Arena, device: Device
    ) -> TextEncoderWeights:
        """Check every tensor's name and shape, and prepare the matrices for a device.

        Raises a `ModelError` that names a tensor which is missing, has another shape, or is unknown
        to the architecture.
        """
        if not tensors:
            raise ModelError(
                "cannot load the model: the file holds no tensors, only metadata; expected a "
                "model's weights"
            )
        loader = Loader(tensors, arena, device, unrounded=_UNROUNDED)

        def rows(name: str, n: int) -> F32:
            values: F32 = device.get(loader.rows(f"{name}.weight", (n, config.n_embd)))
            return values

        n_embd, architecture = config.n_embd, config.architecture
        width = config.n_heads * config.head_dim
        for index in range(config.n_layers):  # refused before a matrix takes memory
            loader.tensor(f"blk.{index}.attn_output.weight", (n_embd, width))
        by_table, norm = architecture.rope_layers == "none", None
        if not (architecture.adds_to_normed or architecture.scaled_embedding):
            norm = loader.norm("token_embd_norm", n_embd)
        has_types = architecture.adds_to_normed and "token_types.weight" in loader
        weights = TextEncoderWeights(
            device=device,
            token_embd=loader.matrix("token_embd.weight", (config.n_vocab, n_embd), products=False),
            position_embd=rows("position_embd", config.n_ctx_train) if by_table else None,
            token_types=rows("token_types", config.n_token_types) if has_types else None,
            token_embd_norm=norm,
            norms=load_norms(loader, config, optional=norm is not None),
            layers=load_layers(loader, config),
            classifier=_classifier(loader, config),
            dense=_dense(loader, config),
        )
        loader.check_used(architecture.name)
        return weights


def _classifier(loader: Loader, config: TextEncoderConfig) -> Classifier | None:
    has_dense, has_output = ("cls.weight" in loader), ("cls.output.weight" in loader)
    if not has_dense and not has_output:
        return None
    n_embd, n_labels = config.n_embd, config.n_labels
    return Classifier(
        loader.linear("cls", n_embd if has_output else n_labels, n_embd) if has_dense else None,
        loader.linear("cls.output", n_labels, n_embd) if has_output else None,
    )


def _dense(loader: Loader, config: TextEncoderConfig) -> tuple[Linear, ...]:
    if "dense_2.weight" not in loader and not config.n_dense:
        return ()
    return (
        loader.linear("dense_2", config.n_dense, config.n_embd),
        loader.linear("dense_3", config.n_embd, config.n_dense),
    )
