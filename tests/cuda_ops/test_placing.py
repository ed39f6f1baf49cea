"""Where K and V are: what is planned, what is refused, what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kvarn
from kvarn.cuda_ops import device as operations
from kvarn.cuda_ops.attention import tiles
from kvarn.jit.arena import Arena
from kvarn.runtime.context.planning.placement import KVPlanner
from kvarn.runtime.context.planning.plan import plan_of
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.model import Model
from kvarn.runtime.store.resident import ResidentStore
from kvarn.system.errors import OutOfDeviceMemory

from ..models import tiny_models
from ..models.tiny.case import Tiny
from .mixed import MixedDevice

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the device's memory is the host's, where Triton interprets"
)

CASE = Tiny(
    "placed", "llama", n_layers=2, n_embd=32, n_heads=2, n_kv_heads=1, head_dim=16, n_ff=32,
    n_vocab=61, n_ctx_train=8192,
)  # fmt: skip
SPARSE = {"budget": 4, "sink": 2, "window": 4}


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    found = Path(tmp_path_factory.mktemp("models"), "placed.gguf")
    tiny_models.write(found, CASE, 5)
    return found


@pytest.fixture
def model(path: Path) -> Model:
    here = kvarn.load(path)
    return Model(here.file, Arena(1 << 20), None, MixedDevice())


def free(model: Model, left: int, held: int = 0) -> None:
    device = model.transformer.device
    assert isinstance(device, MixedDevice)
    device.left = left, held


def planned(model: Model, n_ctx: int, attend: Any, kv: str = "f16") -> int:
    request = ContextRequest(attend=attend, store=kvarn.Ram(kv, kv))
    return KVPlanner(model, request).bytes_for(n_ctx)


def allocated(model: Model, n_ctx: int, attend: Any, kv: str) -> int:
    """Bytes of all tensors that a context makes and holds."""
    seen: dict[int, int] = {}
    make = {name: getattr(torch, name) for name in ("empty", "zeros", "tensor")}

    def noting(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> torch.Tensor:
            made: torch.Tensor = function(*args, **kwargs)
            if not made.is_meta:  # as plans are made
                seen[made.data_ptr()] = made.untyped_storage().nbytes()
            return made

        return call

    ram = kvarn.Ram(kv, kv, centred=False)
    model.context(n_ctx, attend, store=ram, kv_on="gpu").close()  # measures the model's queries
    with pytest.MonkeyPatch.context() as patch:
        for name, function in make.items():
            patch.setattr(torch, name, noting(function))
        context = model.context(n_ctx, attend, store=ram, kv_on="gpu")
    assert isinstance(context.store, ResidentStore)
    return sum(seen.values())


@pytest.mark.parametrize(
    ("attend", "kv"),
    [
        (kvarn.Full(), "f16"),
        (kvarn.Hash(**SPARSE), "q8_0"),
        (kvarn.TopK(**SPARSE), "q4_0"),
    ],
)
def test_the_plan_is_what_a_context_allocates(model, attend: Any, kv: str) -> None:
    for n_ctx in (5, 3000):
        want = allocated(model, n_ctx, attend, kv)
        found = planned(model, n_ctx, attend, kv)
        assert abs(found - want) <= 64
        heads, n = 2 * CASE.n_layers * CASE.n_kv_heads, -(-n_ctx // 1024) * 1024
        assert found > {"f16": 2, "q8_0": 1, "q4_0": 0.5}[kv] * heads * n * 32


def test_auto_takes_the_gpu_with_a_tenth_to_spare(model) -> None:
    needed = planned(model, 2048, kvarn.Full())
    for left, held, there in (
        (needed * 10 // 9 + 16, 0, True),
        (needed * 10 // 9 - 16, 0, False),
        (needed * 10 // 9 + 16, needed, False),  # the tenth is of all memory
        (needed // 2, 0, False),
    ):
        free(model, left, held)
        context = model.context(2048)
        assert isinstance(context.store, ResidentStore) == there
        (line,) = context.notices
        if there:
            assert line.startswith("K and V are on the GPU: ")
            assert line.endswith(" for 2,048 tokens")
        else:
            assert line.startswith(
                "K and V are in the host's memory, where the CPU attends to them: 2,048 tokens need"
            )
            assert line.endswith("are free" + ", of which a tenth is spared" * (left > needed))


def test_what_does_not_fit_is_refused_with_what_would(model) -> None:
    needed = planned(model, 3 * 1024, kvarn.Full())
    free(model, needed)
    assert model.most_tokens() == 3 * 1024
    assert isinstance(model.context(3 * 1024, kv_on="gpu").store, ResidentStore)
    with pytest.raises(
        kvarn.KvarnError,
        match=r"^kv_on gpu: 4,096 tokens need .* of the GPU's memory for KV cache, indexes and "
        r"buffers, and .* are free: at most 3,072 tokens fit: use n_ctx 3072, a smaller store type "
        r"or kv_on host$",
    ):
        model.context(4096, kv_on="gpu")
    free(model, 1000)
    assert model.most_tokens() == 0
    with pytest.raises(kvarn.KvarnError, match=r"1000 B are free: use kv_on host$"):
        model.context(4096, kv_on="gpu")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("keep streaming", {"keep": kvarn.Streaming(budget=32)}),
        ("attend magicpig", {"attend": kvarn.MagicPig()}),
        ("tail means", {"attend": kvarn.TopK(tail="means")}),
        ("tail means", {"attend": kvarn.Hash(tail="means")}),
        ("index flat", {"attend": kvarn.TopK(index="flat")}),
        ("rerank", {"attend": kvarn.Hash(rerank=2)}),
        ("probe", {"attend": kvarn.Hash(probe=4)}),
        ("prefill sparse", {"prefill": kvarn.SparsePrefill(index="sketch")}),
        ("prefill blocks", {"prefill": kvarn.BlocksPrefill()}),
    ],
)
def test_what_needs_the_host_is_refused_by_name(model, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(kvarn.KvarnError) as told:
        model.context(256, kv_on="gpu", **options)
    why = f"{name} needs K and V in the host's memory"
    assert str(told.value) == f"kv_on gpu: {why}: use kv_on host"
    context = model.context(256, **options)
    assert not isinstance(context.store, ResidentStore)
    assert context.notices[0].endswith(f"where the CPU attends to them: {why}")


def test_types_and_heads_without_kernels_are_refused_by_name(model, monkeypatch) -> None:
    monkeypatch.setattr(tiles, "SERVED", ("f16",))
    with pytest.raises(kvarn.KvarnError, match="K of type q8_0 has no GPU kernel, f16 have: use"):
        model.context(64, store=kvarn.Ram("q8_0", "f16"), kv_on="gpu")
    monkeypatch.setattr(tiles, "MOST_HEAD_DIM", 8)
    with pytest.raises(kvarn.KvarnError, match="head_dim 16 has no GPU kernel, those up to 8"):
        model.context(64, kv_on="gpu")
    assert "head_dim 16" in model.context(64).notices[0]


def test_the_host_is_taken_when_asked_for(model) -> None:
    context = model.context(64, kv_on="host")
    assert not isinstance(context.store, ResidentStore)
    assert context.notices[0].endswith("attends to them: as kv_on host says")


def test_questions_are_read_exactly_on_a_gpu(model, path: Path, tmp_path: Path) -> None:
    here, pack = kvarn.load(path), tmp_path / "pack"
    kvarn.build_pack(here, pack, tiny_models.prompt(CASE, 5)[:12], 64)
    store = kvarn.Disk(pack, read_only=True)

    def reading(of: Model, kv_on: str | None = None) -> Any:
        asked = ContextRequest(64, kvarn.Hash(**SPARSE), store=store, kv_on=kv_on)
        return plan_of(of, asked).prefill

    assert reading(model) == kvarn.Exact()
    assert isinstance(reading(model, "host"), kvarn.SparsePrefill)
    assert isinstance(reading(here), kvarn.SparsePrefill)


def test_after_memory_has_run_out_what_was_read_is_saved(model, tmp_path, monkeypatch) -> None:
    """Out of memory in the second chunk: the first is in the context and in the pack."""
    monkeypatch.setattr(MixedDevice, "chunk", 16)
    ids = tiny_models.prompt(CASE, 5)[:40]
    attend = operations.chunk_attention

    def full(q: Any, kv: Any, start: int, out: Any, **options: Any) -> None:
        if start >= 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        attend(q, kv, start, out, **options)

    monkeypatch.setattr(operations, "chunk_attention", full)
    context = model.context(64, store=kvarn.Disk(tmp_path / "pack"), kv_on="gpu")
    with pytest.raises(OutOfDeviceMemory, match=r"GPU.s memory is full .*--kv-on host") as told:
        context.prefill(ids)
    assert "\n" not in str(told.value)
    assert context.tokens == ids[:16]
    monkeypatch.setattr(operations, "chunk_attention", attend)
    logits = context.prefill(ids[16:20])
    context.close()
    again = kvarn.load(model.path).context(64, store=kvarn.Disk(tmp_path / "pack"))
    assert again.tokens == ids[:20]
    np.testing.assert_allclose(again.logits, logits, rtol=0, atol=1e-3)
