"""Load a model from its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from ...jit.arena import Arena
from ...models.tensors import re_encoded_bytes, repacked_bytes
from ...ops.cpu import CPU
from ...system.errors import KvarnError
from ...system.text import one_line
from ...system.values import count_named
from ..engine import on_engine
from ..gguf import GGUFFile, open_gguf
from ..memory import available_bytes, human_bytes
from .adapter_files import Lora, adapter_files
from .adapters import load_adapters
from .default_model import default_model_path
from .devices import check_kv_on, device_named

if TYPE_CHECKING:
    from ...ops.device import Device
    from ..model import Model


def load(
    path: str | Path | None = None,
    *,
    threads: int | None = None,
    notice: Callable[[str], None] | None = None,
    device: str | Device = "cpu",
    kv_on: str = "auto",
    lora: Lora | Sequence[Lora] = (),
) -> Model:
    """Load a GGUF model; without a path, the default model.

    threads: kernel threads of the whole process (default: one per physical core).
    notice: called with lines that the user should see, now or later: tensors that are re-encoded,
    what the first context with a 4-bit KV cache has to measure.
    device: where the weights are, "cpu" or "cuda" (`devices`), or a `Device`.
    kv_on: where contexts of a model on a GPU have K and V: "gpu"; "host", where the CPU attends to
    them; "auto" on the GPU where its memory has room and the methods are served there. Contexts say
    which in `notices`.
    lora: low-rank adapters to add to the model, each a GGUF file, "FILE" or "FILE:SCALE".
    Raises `GGUFError` for a file that cannot be read, `ModelError` for a model that cannot be run,
    `AdapterError` for an adapter that does not fit it, and `KvarnError` if memory does not suffice
    for its matrices, or the device cannot be used; `WrongValue` for `threads` that are no count.
    """
    check_kv_on(kv_on)
    if threads is not None:
        threads = count_named("threads", threads, 1)
    named = adapter_files(lora)
    file = open_gguf(Path(path) if path is not None else default_model_path())
    if isinstance(device, str):
        gpu = device_named(device, file)
    else:
        gpu = None if device.name == "cpu" else device
    if named and gpu is not None:
        raise KvarnError(
            f"loading {one_line(file.path.name)} with --device {gpu.name}: adapters are only "
            "computed on the CPU: use --device cpu"
        )
    adapters = load_adapters(file, named)
    available = available_bytes()
    n_bytes = _repacked(file, available) if gpu is None else 0
    arena = Arena(n_bytes)
    _start_ahead(file, arena, n_bytes, available)
    from ...jit import threads as kernel_threads
    from ..model import Model

    if threads is not None:
        on_engine(kernel_threads.set_threads, threads)
    return Model(file, arena, notice, gpu or CPU, kv_on, adapters)


def _repacked(file: GGUFFile, available: int) -> int:
    """Bytes of the matrices that are repacked; `KvarnError` where they do not fit."""
    n_bytes = repacked_bytes(file.tensors)
    needed = n_bytes + re_encoded_bytes(file.tensors)
    if needed > available:
        raise KvarnError(
            f"loading {one_line(file.path.name)}: its matrices are repacked into"
            f" {human_bytes(needed)}, and {human_bytes(available)} is available: use a smaller"
            " model, or one of a type that is not repacked (Q4_K_M, Q8_0)"
        )
    return n_bytes


def _start_ahead(file: GGUFFile, arena: Arena, n_bytes: int, available: int) -> None:
    """While this core imports kernels, which takes 0.6 s, let another core touch the memory that
    matrices are repacked into, or, without such matrices, the file that the first token reads."""
    if n_bytes:
        Thread(target=arena.populate, daemon=True).start()
    elif file.n_bytes <= available:
        Thread(target=file.touch, daemon=True).start()
