"""Newer architectures in types of few bits: an error of at most twice llama.cpp's own.

Both round activations to int8 blocks, each in its own way. `golden/low.json` has what that costs
llama.cpp 0.3.36 (`python -m tests.models.golden low`): its distance from exact arithmetic.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.runtime.gguf import open_gguf

from . import plain, tiny_low

pytestmark = pytest.mark.usefixtures("one_thread")

GOLDEN: dict[str, float] = json.loads((Path(__file__).parent / "golden" / "low.json").read_text())


def logits_of(path: Path, name: str, chunk: int) -> np.ndarray:
    with open_gguf(path) as file:
        config = ModelConfig.from_metadata(file.metadata)
        model = Transformer(config, Weights.load(file.tensors, config), 64)
        return plain.read(model, plain.PlainAttention(config), tiny_low.ids(name), chunk)


@pytest.mark.parametrize(("name", "kind"), tiny_low.KINDS)
def test_errors_are_at_most_twice_those_of_llama_cpp(name: str, kind: str, tmp_path: Path) -> None:
    tiny_low.write(path := tmp_path / "model.gguf", name, kind)
    exact, limit = tiny_low.exact(name, kind), 2 * GOLDEN[f"{name} {kind}"]
    for chunk in (64, 1):
        assert tiny_low.error(logits_of(path, name, chunk), exact) <= limit


@pytest.mark.parametrize(("name", "kind"), tiny_low.KINDS[::7])
def test_llama_cpp_itself_has_the_errors_on_record(
    name: str, kind: str, llama_oracle: ModuleType, tmp_path: Path
) -> None:
    """Other instruction sets add in another order, which shows in the last digits."""
    tiny_low.write(path := tmp_path / "model.gguf", name, kind)
    with llama_oracle.oracle(path, 256, tiny_low.case_of(name).n_vocab) as oracle:
        logits = oracle.forward(tiny_low.ids(name))
    error = tiny_low.error(logits, tiny_low.exact(name, kind))
    assert error == pytest.approx(GOLDEN[f"{name} {kind}"], rel=0.1)
