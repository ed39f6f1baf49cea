"""Fixtures that every room's tests share."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from kvarn.jit import kernel_cache, threads
from lab.peers.model import Shape, write_model

if TYPE_CHECKING:
    from kvarn.runtime.model import Model

ROOT = Path(__file__).resolve().parent.parent
TINY = Shape(n_layers=2, n_embd=64, n_heads=4, n_kv_heads=2, head_dim=16, n_ff=96, n_vocab=512)


# A suite that failed must fail again: its examples are the same in every run. What hunts for new
# ones is `pytest --hypothesis-profile=search`.
settings.register_profile("suite", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=2000, deadline=None)
settings.load_profile("suite")

# Shells start background programs with Ctrl-C ignored, which their children inherit: the tests that
# interrupt a command mean one that was started at a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees what the user of this machine has pulled, packed or said."""
    os.environ["KVARN_HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True, scope="session")
def workers_share_the_cores() -> None:
    """Kernels of each worker of pytest-xdist have as many threads as its part of the cores: more
    would wait for those of the others. Tests of threads say how many; other processes have all."""
    n_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if n_workers > 1:
        threads.set_threads(max(1, threads.max_threads() // n_workers))


@pytest.fixture(autouse=True, scope="module")
def no_kernel_needs_numba() -> Iterator[None]:
    """Whatever runs a kernel of kvarn's that cannot be kept fails: each process would import Numba
    for it, or compile it."""
    told: list[str] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kernel_cache, "tell_not_kept", lambda *words: told.append(": ".join(words)))
        yield
    assert not [line for line in told if line.startswith("kvarn.")]


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real models, vocabularies and texts; skips where there is none."""
    folder = Path(os.environ.get("KVARN_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}: set KVARN_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny random llama with a byte-level vocabulary of 512 tokens."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_model(path, "f16", TINY)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> "Model":
    """That model, loaded."""
    from kvarn.runtime.loading.load import load

    return load(tiny_path)


@pytest.fixture
def plain_ops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Run models on plain NumPy instead of the kernels; gives the module of helpers."""
    from .models import plain

    plain.use_plain_ops(monkeypatch)
    return plain


@pytest.fixture(scope="session")
def llama_oracle() -> ModuleType:
    """llama.cpp, live; skips where llama-cpp-python is not installed."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from .models import llama_oracle

    return llama_oracle
