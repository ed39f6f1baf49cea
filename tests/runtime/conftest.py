"""Models that tests of the runtime share."""

from pathlib import Path

import numpy as np
import pytest

from kvarn.runtime.draft.lengths import Lengths
from kvarn.runtime.gguf import GGUFFile
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from lab.peers.model import write_model

from .reading import SHAPE


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path, "f16", SHAPE)
    return load(path)


@pytest.fixture(scope="session")
def large(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model whose text varies, for which `small` can draft."""
    return _changed(tiny_path, tmp_path_factory.mktemp("large") / "large.gguf", 0)


@pytest.fixture(scope="session")
def small(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model that is right about `large` at times: some half of its greedy guesses."""
    return _changed(tiny_path, tmp_path_factory.mktemp("small") / "small.gguf", 0.1)


def _changed(tiny_path: Path, path: Path, noise: float) -> Model:
    """The tiny model with louder layers, so that its text varies, and noise in them: a share of
    their spread."""
    data, rng = bytearray(tiny_path.read_bytes()), np.random.default_rng(0)
    for name, tensor in GGUFFile(tiny_path).tensors.items():
        if "ffn_down" in name or "attn_output" in name:
            place = slice(tensor.offset, tensor.offset + tensor.n_bytes)
            loud = np.frombuffer(data[place], np.float16).astype(np.float32) * 30
            loud += rng.normal(0, noise * loud.std() + 1e-9, loud.shape)
            data[place] = loud.astype(np.float16).tobytes()
    path.write_bytes(data)
    return load(path)


@pytest.fixture
def longest_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts as long as they may be, whatever passes take on this machine."""
    monkeypatch.setattr(Lengths, "next", lambda self, longest: (longest, longest))
