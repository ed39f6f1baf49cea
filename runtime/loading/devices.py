"""The devices that a model's weights can be on, by name."""

from __future__ import annotations

import math
import os
from contextlib import suppress

from ...cuda_ops.machine import Card, checked
from ...jit.roots import candidates
from ...models.config import ModelConfig
from ...models.widths import widths_of
from ...ops.device import Device
from ...ops.types import QUANT_TYPES, QuantType, row_bytes
from ...system.errors import KvarnError
from ...system.text import one_line
from ...system.trust import Untrusted, open_folder
from ..gguf import GGUFFile
from ..memory import human_bytes
from .device_names import DEVICES, KV_ON

SMALLER = ("Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K")
"""Types that an error advises instead, the most exact first."""
UNPACKING_BYTES = 256 << 20
"""Memory in which `cuda_ops.linear.planes` unpacks a matrix: 16 million weights at a time, up to 16
bytes for each."""


def device_named(name: str, file: GGUFFile) -> Device | None:
    """The device that `name` means, checked before anything of the model is loaded; None: the CPU.

    Raises `KvarnError`: no such device; what is missing for it; no room for the model there.
    """
    if (card := card_for(name)) is None:
        return None
    import torch

    from ...cuda_ops.device import CudaDevice

    check_room(file, card, CudaDevice.chunk)
    return CudaDevice(torch.device("cuda"))


def check_kv_on(kv_on: str) -> None:
    """Raises `KvarnError` unless `kv_on` is one of `KV_ON`."""
    if kv_on not in KV_ON:
        raise KvarnError(f"K and V cannot be on {kv_on!r:.40}: expected {', '.join(KV_ON)}")


def card_for(name: str) -> Card | None:
    """The GPU that `name` means, None: the CPU. `KvarnError` if there is no such device, or it
    cannot be used."""
    if name not in DEVICES:
        raise KvarnError(f"there is no device {name!r:.40}: expected {' or '.join(DEVICES)}")
    if name == "cpu":
        return None
    card = checked()
    _keep_kernels()
    return card


def _keep_kernels() -> None:
    """Point Triton's cache at the folder of the CPU's kernels, unless TRITON_CACHE_DIR names one.

    Only this user can write to that folder. Call this before Triton is imported."""
    for root in candidates() if "TRITON_CACHE_DIR" not in os.environ else ():
        with suppress(Untrusted, OSError):
            folder = root.expanduser() / "triton"
            open_folder(folder, make=True)
            os.environ["TRITON_CACHE_DIR"] = str(folder)
            return


def check_room(file: GGUFFile, card: Card, chunk: int) -> None:
    """`KvarnError` if the model's weights and the forward pass of `chunk` tokens do not fit."""
    matrices, config = _matrices(file), ModelConfig.from_metadata(file.metadata)
    unserved = "latent attention" if any(x.latent for x in config.attention_layers) else ""
    if not config.one_geometry:
        unserved = "attention whose layers differ in their keys and values"
    if unserved:
        raise KvarnError(
            f"loading {one_line(file.path.name)} with --device cuda: {unserved} has no kernels for "
            "GPUs: use --device cpu"
        )
    rest = _working_bytes(file, config, chunk)
    weights = _planes_bytes(matrices)
    if weights + rest <= card.free_bytes:
        return
    fits = next(
        (
            name
            for name in SMALLER
            if (n := _planes_bytes(matrices, name)) < weights and n + rest <= card.free_bytes
        ),
        None,
    )
    smaller = "a smaller model" if fits is None else f"the model as {fits}, which fits"
    raise KvarnError(
        f"loading {one_line(file.path.name)} with --device cuda: weights and buffers need "
        f"{human_bytes(weights + rest)}, and {human_bytes(card.free_bytes)} of "
        f"{human_bytes(card.total_bytes)} are free on {one_line(card.name)}: use {smaller}, or "
        "--device cpu"
    )


Matrix = tuple[QuantType, int, int]
"""Type as it is on the device, rows, columns."""


def _matrices(file: GGUFFile) -> list[Matrix]:
    """All tensors, but for those of unsupported types, which `Weights.load` refuses."""
    return [
        (
            QUANT_TYPES["Q8_0"] if tensor.type.treatment == "re-encoded" else tensor.type,
            math.prod(tensor.shape[:-1]),
            tensor.shape[-1],
        )
        for tensor in file.tensors.values()
        if tensor.type.treatment != "unsupported"
    ]


def _planes_bytes(matrices: list[Matrix], name: str | None = None) -> int:
    """Bytes of the matrices on a GPU, as they are or all as type `name`; vectors are float32."""
    from ...cuda_ops.linear.formats import FORMATS

    return sum(
        FORMATS[(name or type.name) if rows > 1 else "F32"].row_bytes(columns) * rows
        for type, rows, columns in matrices
    )


def _working_bytes(file: GGUFFile, config: ModelConfig, chunk: int) -> int:
    """Bytes beside the weights: to load the largest matrix or to read a chunk, what is more."""
    sizes = (
        rows * row_bytes(type, columns) + _planes_bytes([(type, rows, columns)])
        for type, rows, columns in _matrices(file)
    )
    loading = max(sizes, default=0)
    from ...cuda_ops.linear.linear import SCRATCH_WEIGHTS

    widths = widths_of(config)
    floats = chunk * sum(widths.rows.values()) + 32 * config.n_vocab
    halves = chunk * sum(widths.inputs.values())
    reading = 4 * floats + 2 * (halves + 3 * SCRATCH_WEIGHTS)
    return max(loading + UNPACKING_BYTES, reading)
