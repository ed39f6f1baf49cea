"""A model that tests of the runtime share."""

import pytest

from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from lab.peers.model import write_model

from .reading import SHAPE


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path, "f16", SHAPE)
    return load(path)
