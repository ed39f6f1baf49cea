"""Models whose weights are on a GPU beside the same models on the CPU; K and V mostly on the host.

More about K and V on the GPU is in `test_resident`. In the interpreter a program of a kernel costs
some 25 ms, so models have as few rows as they can.
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
from kvarn.cuda_ops.linear.linear import MAX_TOKENS
from kvarn.cuda_ops.warm import compile_all
from kvarn.ops.attention.layout import SEGMENT
from kvarn.ops.attention.softmax import Softmax
from kvarn.ops.cpu import CPU
from kvarn.system.errors import OutOfDeviceMemory

from ..models import tiny_models
from ..models.tiny.case import GRANITE, PATTERN, SWA, Tiny

SMALL: dict[str, Any] = {
    "n_layers": 2, "n_embd": 20, "n_heads": 2, "n_kv_heads": 1, "head_dim": 8, "n_ff": 20,
    "n_vocab": 29,
}  # fmt: skip
CASES = (
    Tiny("cuda-llama", "llama", **SMALL),
    Tiny("cuda-qwen3", "qwen3", **SMALL, tied=True),
    Tiny("cuda-gemma2", "gemma2", **SMALL, tied=True, keys={SWA: 16}),
    Tiny(
        "cuda-cohere2",
        "cohere2",
        **SMALL,
        tied=True,
        keys={SWA: 12, "logit_scale": 0.25},
    ),
    Tiny("cuda-phi3", "phi3", **SMALL, fused_qkv=True),
    Tiny("cuda-granite", "granite", **SMALL, keys=GRANITE),
    Tiny("cuda-olmo2", "olmo2", **SMALL),
    Tiny("cuda-nemotron", "nemotron", **SMALL, n_rot=4),
    Tiny("cuda-phi2", "phi2", **SMALL, n_rot=4, biases=("attn_q", "ffn_up", "ffn_down")),
    Tiny("cuda-stablelm", "stablelm", **SMALL, n_rot=4, each_head=True),
    Tiny(
        "cuda-muse-glimmer",
        "muse-glimmer",
        **SMALL,
        keys={SWA: 12, PATTERN: [True, False], "logit_scale": 0.5},
    ),
)
SEEDS = {"cuda-llama": 15, "cuda-qwen3": 30, "cuda-gemma2": 34}
"""Those of 40 whose chosen ids stand out most on the CPU, otherwise 5: products of more than 8
tokens are of f16, which moves logits by 0.5% of their standard deviation."""
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
            tiny_models.write(path, case, SEEDS.get(name, 5))
            made[name] = (
                kvarn.load(path),
                kvarn.load(path, device=CudaDevice(device), kv_on="host"),
            )
        return made[name]

    return load


def prompt_of(name: str, n: int) -> list[int]:
    case = next(case for case in CASES if case.name == name)
    return tiny_models.prompt(case, SEEDS.get(name, 5))[:n]


def greedy(
    context: kvarn.Context, prompt: list[int], n: int, piece: int
) -> tuple[list[int], np.ndarray]:
    """n greedy ids after a prompt read `piece` tokens at a time, and the logits of each."""
    for first in range(0, len(prompt), piece):
        logits = context.prefill(prompt[first : first + piece])
    rows, ids = [logits.copy()], []
    while True:
        ids.append(int(rows[-1].argmax()))
        if len(ids) == n:
            return ids, np.array(rows)
        rows.append(context.decode(ids[-1]).copy())


def compare(
    models: Any, name: str, kv: str, attend: Any, n: int, piece: int = 40, kv_on: str = "host"
) -> None:
    """The greedy ids are the CPU's, and no logit is further off than half of what separates the
    chosen ones from the second best: the ids are no luck."""
    prompt = prompt_of(name, 40)
    here, there = (
        greedy(model.context(96, attend, store=kvarn.Ram(kv, kv), kv_on=on), prompt, n, piece)
        for model, on in zip(models(name), ("host", kv_on))
    )
    assert there[0] == here[0]
    best = np.sort(here[1], 1)
    assert np.abs(there[1] - here[1]).max() < (best[:, -1] - best[:, -2]).min() / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv", "attend", "piece"),
    [
        ("f16", kvarn.Full(), 40),
        # Products of up to 8 tokens are float32: keys moved by those of f16 get other q8_0 codes
        # and signatures, and what a signature chooses is no continuous function of a key.
        ("q8_0", kvarn.Hash(**SPARSE), MAX_TOKENS),
        ("f16", kvarn.TopK(**SPARSE), 40),
    ],
)
def test_greedy_ids_are_the_cpus(models, kv: str, attend: Any, piece: int) -> None:
    compare(models, "cuda-llama", kv, attend, N_IDS, piece)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kv", "attend"),
    [("f16", kvarn.Full()), ("q8_0", kvarn.Hash(**SPARSE)), ("f16", kvarn.TopK(**SPARSE))],
    ids=["full", "hash", "topk"],
)
def test_greedy_ids_with_k_and_v_on_the_device(models, kv: str, attend: Any) -> None:
    compare(models, "cuda-llama", kv, attend, N_IDS, MAX_TOKENS, "gpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CASES[1:]])
def test_every_kind_of_layer(models, name: str) -> None:
    compare(models, name, "f16", kvarn.Full(), 3)


def test_after_memory_has_run_out_the_context_goes_on(models, monkeypatch) -> None:
    _, model = models("cuda-llama")
    prompt = prompt_of("cuda-llama", 9)
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
    np.testing.assert_array_equal(context.decode(5), undisturbed.decode(5))


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


def test_kernels_are_compiled_ahead_by_calling_them(device) -> None:
    told: list[str] = []
    assert compile_all(CudaDevice(device), told.append, []) == 48
    assert told == ["norms, rope, gates"]


def test_items_are_those_of_the_cpu(device) -> None:
    """As read, by heads, and written back: of several segments and heads."""
    gpu, n_bytes = CudaDevice(device), 5
    memory = np.random.default_rng(0).integers(0, 256, (3, 2 * SEGMENT * n_bytes), np.uint8)
    places = memory.ctypes.data + memory.shape[1] * np.arange(3)
    there = torch.tensor(memory, device=device)
    items = CPU.read_items(places, 2, n_bytes)
    np.testing.assert_array_equal(gpu.read_items(there, 2, n_bytes), items)
    gpu.write_items(there[1:], items[:, : 2 * SEGMENT])
    CPU.write_items(places[1:], items[:, : 2 * SEGMENT])
    np.testing.assert_array_equal(there.cpu().numpy(), memory)


def test_attention_sinks_are_refused_in_words(device) -> None:
    gpu, logits = CudaDevice(device), np.zeros(2, np.float32)
    with pytest.raises(CudaOpsError, match="attention sinks have no kernels"):
        gpu.gathered_attention(softmax=Softmax(1.0, sinks=logits))
    with pytest.raises(CudaOpsError, match="attention sinks have no kernels"):
        gpu.attention(None, None, 0, None, scratch=None, softmax=Softmax(1.0, sinks=logits))


def test_recurrent_layers_are_refused_in_words(device) -> None:
    with pytest.raises(CudaOpsError, match="no kernels for GPUs"):
        _ = CudaDevice(device).recurrent
