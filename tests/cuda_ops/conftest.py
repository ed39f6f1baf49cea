"""Without a GPU the kernels run in Triton's interpreter, on CPU tensors: the same source.

Where PyTorch or Triton is missing, the modules of this folder are skipped and say so.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

MISSING = [name for name in ("torch", "triton") if find_spec(name) is None]

if not MISSING:
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported


class Skipped(pytest.Module):
    """A module that cannot be imported here."""

    def collect(self):
        pytest.skip(f"needs {' and '.join(MISSING)}: make test-cuda")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector):
    return Skipped.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session")
def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
