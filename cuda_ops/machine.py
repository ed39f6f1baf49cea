"""What this machine has for `--device cuda`, and why that does not suffice.

`look` imports torch where it is installed. Nothing here imports Triton.

CUDA's versions: a driver runs what was built for its own major version of CUDA or an older one
(NVIDIA, "CUDA Compatibility", minor version compatibility).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import warnings
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..system.extras import how_to_install
from .errors import CudaOpsError

INSTALL = how_to_install("cuda")
LEAST = (7, 5)
"""Compute capability: Turing. What Triton compiles for older cards is neither compiled nor tested
here (`ahead`)."""


@dataclass(frozen=True)
class Card:
    """A GPU that torch can use."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class Machine:
    """Software and cards; None where something is missing.

    broken      why torch cannot be imported although it is installed, or ""
    cuda        version of CUDA that torch was built for
    driver_cuda, driver   newest version of CUDA that the driver runs; the driver's own version
    compiler    the C compiler that Triton builds its launcher with, once
    headers     whether Python's headers are there, which the launcher includes
    """

    torch: str | None
    triton: str | None
    broken: str
    cuda: str | None
    driver_cuda: str | None
    driver: str | None
    cards: tuple[Card, ...]
    compiler: str | None
    headers: bool

    def as_dict(self) -> dict[str, Any]:
        """For JSON; compute capabilities as they are written, "8.9"."""
        cards = [{**asdict(c), "capability": _dotted(c.capability)} for c in self.cards]
        return {**asdict(self), "cards": cards}


def look() -> Machine:
    """This machine."""
    torch, triton = _version("torch"), _version("triton")
    broken, cuda = "", None
    cards: tuple[Card, ...] = ()
    if torch is not None:
        try:
            torch, cuda, cards = _of_torch()
        except Exception as error:  # whatever a broken installation raises while it is imported
            broken = f"{type(error).__name__}: {error}"
    compiler, headers = _compiler(), _headers()
    return Machine(torch, triton, broken, cuda, _driver_cuda(), _driver(), cards, compiler, headers)


def refusal(machine: Machine) -> str | None:
    """Why the machine cannot compute with `--device cuda`, in one line with the mend; or None."""
    if machine.torch is None or machine.triton is None:
        return f"--device cuda needs PyTorch and Triton: {INSTALL}"
    if machine.broken:
        return (
            f"--device cuda: PyTorch {machine.torch} cannot be imported ({machine.broken}): "
            f"install it anew, {INSTALL}"
        )
    if machine.cuda is None:
        return (
            f"--device cuda: PyTorch {machine.torch} was built without CUDA: remove it "
            f"(pip uninstall torch), then {INSTALL}"
        )
    if not machine.cards:
        return _no_card(machine)
    card = machine.cards[0]
    if card.capability < LEAST:
        return (
            f"--device cuda: {card.name} has compute capability {_dotted(card.capability)}, "
            f"expected {_dotted(LEAST)} (Turing, 2018) or newer: use --device cpu"
        )
    if machine.compiler is None:
        return (
            "--device cuda: Triton needs a C compiler once and found none: install one "
            "(apt install gcc) or set CC to it"
        )
    if not machine.headers:
        return (
            "--device cuda: Triton needs Python's headers once and they are not installed "
            "(apt install python3-dev)"
        )
    return None


def checked() -> Card:
    """The GPU to compute on, the first that CUDA shows; `CudaOpsError` if it cannot be used."""
    machine = look()
    if reason := refusal(machine):
        raise CudaOpsError(reason)
    return machine.cards[0]


def _no_card(machine: Machine) -> str:
    if machine.driver_cuda is None:
        return (
            "--device cuda: no GPU: there is no NVIDIA driver (libcuda) on this machine: "
            "install it, or use --device cpu"
        )
    if _major(machine.driver_cuda) < _major(machine.cuda or "0"):
        return (
            f"--device cuda: the NVIDIA driver runs CUDA {machine.driver_cuda} and PyTorch "
            f"{machine.torch} was built for CUDA {machine.cuda}: update the driver, or install a "
            "PyTorch built for an older CUDA"
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    cause = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden!r:.40})"
    return f"--device cuda: the NVIDIA driver finds no GPU{cause}: use --device cpu"


def _of_torch() -> tuple[str, str | None, tuple[Card, ...]]:
    """torch's version, the CUDA that it was built for, and the cards that it can use."""
    import torch

    with warnings.catch_warnings():  # on drivers too old, which `refusal` tells
        warnings.simplefilter("ignore")
        n = torch.cuda.device_count() if torch.version.cuda and torch.cuda.is_available() else 0
    cards = tuple(_card(torch, i) for i in range(n))
    return torch.__version__, torch.version.cuda, cards


def _card(torch: Any, i: int) -> Card:
    free, total = torch.cuda.mem_get_info(i)
    name, capability = torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)
    return Card(name, tuple(capability), total, free)


def _driver_cuda() -> str | None:
    """What the driver's library says; needs neither torch nor a card."""
    name = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None
    version = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0 or not version.value:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _driver() -> str | None:
    path = Path("/proc/driver/nvidia/version")
    text = path.read_text(errors="replace") if path.exists() else ""
    version = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return version[1] if version else None


def _compiler() -> str | None:
    """What Triton would call, in its order (`triton.runtime.build`)."""
    named = os.environ.get("CC")
    names = ["gcc", "clang"] if named is None else [named]
    return next(filter(None, map(shutil.which, names)), None)


def _headers() -> bool:
    import sysconfig  # only for GPUs: not every start pays for it

    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    return Path(sysconfig.get_paths(scheme)["include"], "Python.h").exists()


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package) if find_spec(package) is not None else None
    except PackageNotFoundError:
        return "of unknown version"


def _major(text: str) -> int:
    return int(text.partition(".")[0])


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
