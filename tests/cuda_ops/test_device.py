"""Models whose weights are on a GPU, K and V on the host, beside the same models on the CPU.

In the interpreter a program costs 15 ms, so models have a few dozen rows, and of the 16 greedy ids
most are read in passes of several: as a draft of what the CPU chose, which is what the GPU has to
choose after each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kvarn
from kvarn.cuda_ops import linear
from kvarn.cuda_ops.device import CudaDevice
from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.cuda_ops.warm import compile_all
from kvarn.system.errors import OutOfDeviceMemory

from ..models import tiny_cases, tiny_models
from ..models.tiny_cases import Tiny

SMALL: dict[str, Any] = {
    "n_layers": 2, "n_embd": 36, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "n_ff": 40,
    "n_vocab": 53,
}  # fmt: skip
CASES = (
    Tiny("cuda-llama", "llama", **SMALL),
    Tiny("cuda-qwen3", "qwen3", **SMALL, tied=True),
    Tiny("cuda-gemma2", "gemma2", **SMALL, tied=True, keys={tiny_cases.SWA: 16}),
    Tiny("cuda-cohere2", "cohere2", **SMALL, tied=True, keys={tiny_cases.SWA: 12}),
    Tiny("cuda-phi3", "phi3", **SMALL, fused_qkv=True),
)
SEED = 5
N_IDS = 16
SPARSE = {"budget": 16, "sink": 4, "window": 8}


@pytest.fixture(scope="module")
def models(device, tmp_path_factory):
    """name → the model on the CPU, and on the device."""
    folder, made = tmp_path_factory.mktemp("models"), {}

    def load(name: str) -> tuple[kvarn.Model, kvarn.Model]:
        if name not in made:
            case = next(case for case in CASES if case.name == name)
            path = Path(folder, f"{name}.gguf")
            tiny_models.write(path, case, SEED)
            made[name] = kvarn.load(path), kvarn.load(path, device=CudaDevice(device))
        return made[name]

    return load


def prompt_of(name: str, n: int) -> list[int]:
    case = next(case for case in CASES if case.name == name)
    return tiny_models.prompt(case, SEED)[:n]


def read(context: kvarn.Context, ids: list[int], at_once: int) -> np.ndarray:
    """Read a prompt, `at_once` tokens in one pass; its last logits."""
    for first in range(0, len(ids), at_once):
        logits = context.prefill(ids[first : first + at_once])
    return logits.copy()


def greedy(context: kvarn.Context, logits: np.ndarray) -> tuple[list[int], np.ndarray]:
    """N_IDS ids, and the logits that each was chosen from."""
    rows, ids = [logits], [int(logits.argmax())]
    while len(ids) < N_IDS:
        rows.append(context.decode(ids[-1]).copy())
        ids.append(int(rows[-1].argmax()))
    return ids, np.array(rows)


def forced(context: kvarn.Context, logits: np.ndarray, ids: list[int]) -> np.ndarray:
    """The logits that each of `ids` has to be chosen from: two tokens alone, the others in passes
    of up to seven."""
    rows, done = [logits], 0
    while len(rows) < len(ids):
        draft = ids[done + 1 : min(done + 7, len(ids) - 1)] if done >= 2 else []
        rows.append(context.decode(ids[done], draft).copy())
        done += 1
        for token in draft:
            rows.append(context.decode(token).copy())
            done += 1
    return np.array(rows)


def compare(
    pair: tuple[kvarn.Model, kvarn.Model],
    prompt: list[int],
    at_once: int,
    kv: str,
    attend: Any,
) -> float:
    """Check the ids, and return the largest error of a logit, of their standard deviation."""
    here, there = (model.context(96, attend=attend, store=kvarn.Ram(kv, kv)) for model in pair)
    ids, rows = greedy(here, read(here, prompt, at_once))
    got = forced(there, read(there, prompt, at_once), ids)
    assert got.argmax(1).tolist() == ids
    return float(np.abs(got - rows).max() / rows.std())


@pytest.mark.parametrize(
    ("kv", "attend"),
    [
        ("f16", kvarn.Full()),
        ("q8_0", kvarn.Full()),
        ("f16", kvarn.Hash(**SPARSE)),
        ("q8_0", kvarn.TopK(**SPARSE)),
    ],
)
def test_greedy_ids_are_the_cpus(models, kv: str, attend: Any) -> None:
    """Of few tokens at a time, whose products are those of float32 in another order."""
    prompt = prompt_of("cuda-llama", 40)
    assert compare(models("cuda-llama"), prompt, 8, kv, attend) < BOUND[kv]


BOUND = {"f16": 2e-3, "q8_0": 2e-2}
"""Of logits' standard deviation: a key that differs in its last bit of float32 may be stored as the
neighbouring f16 or code."""


@pytest.mark.parametrize("name", [case.name for case in CASES[1:]])
def test_every_kind_of_layer(models, name: str) -> None:
    """A prompt read at once: its products are of f16."""
    assert compare(models(name), prompt_of(name, 24), 24, "f16", kvarn.Full()) < OF_HALVES


OF_HALVES = 2e-2
"""Products of few tokens err by 2^-11 of their terms' root; layers and norms add to it."""


def test_after_memory_has_run_out_the_context_goes_on(models, monkeypatch) -> None:
    _, model = models("cuda-llama")
    prompt = prompt_of("cuda-llama", 6)
    context = model.context(64)
    logits = context.prefill(prompt).copy()

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 …")

    with monkeypatch.context() as patch:
        patch.setattr(linear, "linear_many", full)
        with pytest.raises(OutOfDeviceMemory, match=r"GPU.s memory is full .*--device cpu") as told:
            context.prefill([5, 6, 7])
        assert "\n" not in str(told.value)
    assert context.tokens == prompt
    np.testing.assert_array_equal(context.logits, logits)
    undisturbed = model.context(64)
    undisturbed.prefill(prompt)
    np.testing.assert_array_equal(context.prefill([5, 6]), undisturbed.prefill([5, 6]))


def test_one_copy_brings_all_to_the_host(device) -> None:
    gpu = CudaDevice(device)
    q, k = (gpu.put(np.arange(n, dtype=np.float32).reshape(-1, 3)) for n in (12, 6))
    out = gpu.memory((4, 3), np.float32)

    def attend(q: np.ndarray, k: np.ndarray, out: np.ndarray) -> None:
        out[:] = 2 * q + k[1]
        q[:] = k[:] = -1  # a copy, with which the function may do as it likes

    for _ in range(2):
        gpu.on_host(attend, (q, k), out)
    want = 2 * np.arange(12).reshape(4, 3) + [3, 4, 5]
    np.testing.assert_array_equal(gpu.get(out), want)
    np.testing.assert_array_equal(gpu.get(q), np.arange(12).reshape(4, 3))


def test_memory_is_put_and_got(device) -> None:
    gpu = CudaDevice(device)
    mapped = np.arange(6, dtype=np.int32)
    mapped.flags.writeable = False
    x = gpu.put(mapped)
    np.testing.assert_array_equal(gpu.get(gpu.put(mapped + 1, x)), mapped + 1)
    np.testing.assert_array_equal(mapped, np.arange(6))
    assert gpu.memory((2, 3), np.float16).dtype == torch.float16


def test_recorded_operations_run_when_they_are_told_to(device) -> None:
    gpu = CudaDevice(device)
    x, y = (gpu.put(np.full((1, 4), value, np.float32)) for value in (1, 2))
    out = gpu.memory((1, 4), np.float32)
    graph = gpu.record(gpu.pointwise.add, x, y, out)
    for value in (3, 5):
        gpu.put(np.full((1, 4), value, np.float32), x)
        graph.run()
        np.testing.assert_array_equal(gpu.get(out), np.full((1, 4), value + 2))


def test_types_without_kernels_become_q8_0(device) -> None:
    from kvarn.ops.reference.quants import re_encode_q8_0
    from kvarn.ops.types import QUANT_TYPES

    quant, gpu = QUANT_TYPES["TQ2_0"], CudaDevice(device)
    data = np.random.default_rng(0).integers(0, 200, (2, quant.n_bytes), np.uint8)
    data[:, -2:] = np.full(2, 0.5, np.float16).view(np.uint8).reshape(2, 2)[:1]
    weight = gpu.weight(quant, data, quant.block, "w")
    want = gpu.weight(QUANT_TYPES["Q8_0"], re_encode_q8_0(quant, data, quant.block), quant.block)
    assert weight.type.name == "Q8_0" and weight.is_copy
    assert torch.equal(weight.planes.codes.view(torch.int32), want.planes.codes.view(torch.int32))


def test_what_only_stores_ask_for_is_refused_by_name(device) -> None:
    gpu = CudaDevice(device)
    for name in ("append_kv", "read_kv", "attention_scratch", "gathered_scratch", "of_heads"):
        with pytest.raises(CudaOpsError, match=f"{name} on a GPU: K and V are in the host's"):
            getattr(gpu, name)()
    for name in ("attention", "gathered_attention", "select"):
        with pytest.raises(CudaOpsError, match=f"{name} on a GPU"):
            getattr(gpu, name)


def test_kernels_are_compiled_ahead_by_calling_them(device) -> None:
    told: list[str] = []
    assert compile_all(CudaDevice(device), told.append, ["Q8_0"]) > 60
    assert told[0] == "products of Q8_0"
