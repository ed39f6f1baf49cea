"""Finding and loading a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from ...jit.arena import Arena
from ...models.tensors import re_encoded_bytes, repacked_bytes
from ...system.errors import KvarnError
from ...system.text import one_line
from ..engine import on_engine
from ..gguf import GGUFFile, open_gguf
from ..memory import available_bytes, human_bytes
from .default_model import default_model_path

if TYPE_CHECKING:
    from ..model import Model


def load(
    path: str | Path | None = None,
    *,
    threads: int | None = None,
    notice: Callable[[str], None] | None = None,
) -> Model:
    """Load a GGUF model; without a path, the default model.

    threads: kernel threads of the whole process (default: one per physical core).
    notice: called with one line for each thing worth telling, now or later: tensors that are
    re-encoded, what the first context with a KV cache in 4 bits has to measure.
    Raises `GGUFError` for a file that cannot be read, `ModelError` for a model that cannot be run,
    and `KvarnError` where there is no memory to lay matrices out in.
    """
    file = open_gguf(Path(path) if path is not None else default_model_path())
    n_bytes, available = repacked_bytes(file.tensors), available_bytes()
    needed = n_bytes + re_encoded_bytes(file.tensors)
    if needed > available:
        raise KvarnError(
            f"loading {one_line(file.path.name)}: its matrices are laid out anew in"
            f" {human_bytes(needed)},"
            f" and {human_bytes(available)} are available: use a smaller model, or one of a type"
            " that is read where it lies (Q4_K_M, Q8_0)"
        )
    arena = Arena(n_bytes)
    _start_ahead(file, arena, n_bytes, available)
    from ...jit import threads as kernel_threads
    from ..model import Model

    if threads is not None:
        on_engine(kernel_threads.set_threads, threads)
    return Model(file, arena, notice)


def _start_ahead(file: GGUFFile, arena: Arena, n_bytes: int, available: int) -> None:
    """Importing the kernels takes 0.6 s of one core: meanwhile another has the memory provided
    that the first token writes or, where nothing is laid out anew, reads."""
    if n_bytes:
        Thread(target=arena.populate, daemon=True).start()
    elif file.n_bytes <= available:
        Thread(target=file.touch, daemon=True).start()
