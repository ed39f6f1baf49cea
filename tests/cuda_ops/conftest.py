"""Without a GPU the kernels run in Triton's interpreter, on CPU tensors: the same source."""

import os

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `cuda`: PyTorch")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported
pytest.importorskip("triton", reason="needs the extra `cuda`: Triton")


@pytest.fixture(scope="session")
def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
