"""Whole models with K and V in torch's memory, beside the same models on the CPU.

Their weights are computed by the CPU (`mixed`), so that what differs is what is done with K and V.
Single tokens are recorded launches, made again for each token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvarn
from kvarn.cuda_ops.linear.linear import MAX_TOKENS
from kvarn.jit.arena import Arena
from kvarn.runtime.model import Model

from ..models import tiny_cases, tiny_models
from ..models.tiny_cases import Tiny
from .mixed import MixedDevice, forced, greedy

SMALL: dict[str, Any] = {
    "n_layers": 2, "n_embd": 32, "n_heads": 2, "n_kv_heads": 1, "head_dim": 16, "n_ff": 32,
    "n_vocab": 61,
}  # fmt: skip
SHAPES = {case.name: case for case in tiny_cases.CASES}
FIRST = list({case.architecture: name for name, case in reversed(SHAPES.items())}.values())
"""One shape of each architecture."""
DEFAULT = Tiny("resident", "llama", **SMALL)
CAPPED = Tiny("capped", "gemma2", **SMALL, tied=True, keys={tiny_cases.SWA: 16})
SEED = 5
N_IDS = 16
SPARSE = {"budget": 4, "sink": 2, "window": 4}
METHODS: dict[str, Any] = {"full": kvarn.Full(), "hash": kvarn.Hash(**SPARSE)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """case → its model on the CPU, and on a device of torch that has K and V."""
    folder, made = tmp_path_factory.mktemp("models"), {}

    def load(case: Tiny) -> tuple[Model, Model]:
        if case.name not in made:
            path = Path(folder, f"{case.name}.gguf")
            tiny_models.write(path, case, SEED)
            here = kvarn.load(path)
            made[case.name] = here, Model(here.file, Arena(1 << 20), None, MixedDevice(), "gpu")
        return made[case.name]

    return load


def launches_of(model: Model) -> list[Any]:
    device = model.transformer.device
    assert isinstance(device, MixedDevice)
    return device.recorded


def context_of(model: Model, kv: str, method: str) -> kvarn.Context:
    return model.context(64, attend=METHODS[method], store=kvarn.Ram(kv, kv))


def compare(models: Any, case: Tiny, kv: str, method: str) -> None:
    """16 greedy ids are the CPU's. Where K and V are rounded to few bits, a rounding that falls the
    other way moves a logit by as much as the type's noise, which f16 on the CPU has not: there the
    logits are within twice that, with the same tokens."""
    prompt = tiny_models.prompt(case, SEED)[:MAX_TOKENS]
    here, there = models(case)
    ids, want = greedy(context_of(here, kv, method), prompt, N_IDS)
    if kv == "f16":
        assert greedy(context_of(there, kv, method), prompt, N_IDS)[0] == ids
        return
    noise = np.abs(want - forced(context_of(here, "f16", method), prompt, ids)).max()
    error = np.abs(want - forced(context_of(there, kv, method), prompt, ids)).max()
    assert error <= 2 * noise


@pytest.mark.parametrize(("kv", "method"), [("f16", "full"), ("q8_0", "hash"), ("q4_0", "full")])
def test_greedy_ids_are_the_cpus(models, kv: str, method: str) -> None:
    compare(models, DEFAULT, kv, method)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("method", METHODS)
def test_every_architecture(models, name: str, kv: str, method: str) -> None:
    compare(models, SHAPES[name], kv, method)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES.keys() - set(FIRST))
def test_every_shape(models, name: str) -> None:
    compare(models, SHAPES[name], "f16", "full")


@pytest.mark.parametrize("case", [DEFAULT, CAPPED], ids=["plain", "window and cap"])
def test_prompts_are_read_in_chunks(models, case: Tiny) -> None:
    """As f16: logits are off by less than 1% of their spread."""
    prompt = tiny_models.prompt(case, SEED)[:40]
    here, there = (context_of(model, "f16", "full").prefill(prompt) for model in models(case))
    assert np.abs(there - here).max() < 0.01 * here.std()


@pytest.mark.parametrize(("method", "most"), [("full", 12), ("hash", 18)])
def test_launches_of_a_layer(models, method: str, most: int) -> None:
    """Two models that differ by a layer, so that what is around the layers does not count."""
    counts = []
    for n_layers in (1, 2):
        case = Tiny(f"layers-{n_layers}", "llama", **{**SMALL, "n_layers": n_layers})
        _, model = models(case)
        with model.context(64, attend=METHODS[method]) as context:
            context.prefill(tiny_models.prompt(case, SEED)[:20])
            context.decode(3)
        counts.append(len(launches_of(model)[-1].names))
    assert 8 < counts[1] - counts[0] <= most


def test_one_recording_serves_all_tokens(models) -> None:
    _, model = models(DEFAULT)
    before = len(launches_of(model))
    with context_of(model, "f16", "hash") as context:
        context.prefill(tiny_models.prompt(DEFAULT, SEED)[:5])
        for token in range(9):  # up to ten tokens all are read
            context.decode(token)
    assert len(launches_of(model)) == before + 2
