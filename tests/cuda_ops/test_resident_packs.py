"""Packs that a model on a GPU writes and opens: the CPU's, and the other way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kvarn
from kvarn.jit.arena import Arena
from kvarn.runtime.model import Model
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.resident import ResidentStore

from ..models import tiny_models
from ..models.tiny.case import Tiny
from .mixed import MixedDevice

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="the device's memory is the host's, where Triton interprets"
)

CASE = Tiny(
    "packed", "llama", n_layers=2, n_embd=32, n_heads=2, n_kv_heads=1, head_dim=16, n_ff=32,
    n_vocab=61, n_ctx_train=4096,
)  # fmt: skip
SPARSE = {"budget": 4, "sink": 2, "window": 4}
IDS = np.random.default_rng(3).integers(0, 61, 8).tolist()


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> tuple[Model, Model]:
    """On the CPU, and on a device of torch that has K and V."""
    path = Path(tmp_path_factory.mktemp("models"), "packed.gguf")
    tiny_models.write(path, CASE, 5)
    here = kvarn.load(path)
    return here, Model(here.file, Arena(1 << 20), None, MixedDevice(), "gpu")


def opened(model: Model, pack: Path, attend: Any = None, **options: Any) -> kvarn.Context:
    return model.context(2100, attend, store=kvarn.Disk(pack, k="q8_0", v="q8_0", **options))


def written(model: Model, pack: Path, attend: Any = None, n: int = 1030) -> kvarn.Context:
    """A pack of `n` tokens, mostly filled; the last is read."""
    context = opened(model, pack, attend)
    context.prefill(IDS)
    context.fill(n - 1)
    context.prefill([7])
    return context


def check_same(cpu: Path, gpu: Path) -> None:
    """The same full segments of K and V, and of columns. Those of the first layer depend on no
    attention; later ones may be rounded the other way here and there."""
    names = sorted(path.name for path in (*cpu.glob("layer-*.kv"), *cpu.glob("index-*")))
    assert len(names) >= CASE.n_layers
    for name in names:
        a, b = (np.fromfile(pack / name, np.uint8) for pack in (cpu, gpu))
        assert a.shape == b.shape and (a != b).mean() < (0.01 if name != "layer-000.kv" else 1e-9)


@pytest.mark.parametrize("attend", [kvarn.Full(), kvarn.Hash(**SPARSE)], ids=["full", "hash"])
def test_a_pack_has_the_bytes_of_the_cpus(models, tmp_path: Path, attend: Any) -> None:
    """A full segment of K and V and of the signatures, and what follows. Both sides go on with the
    other's: the same logits, but for the rounding of attention."""
    packs, logits = (tmp_path / "cpu", tmp_path / "gpu"), []
    for model, pack in zip(models, packs):
        with written(model, pack, attend) as context:
            logits.append(context.decode(5).copy())
            assert isinstance(context.store, ResidentStore) == (model is models[1])
    check_same(*packs)
    assert verify(packs[1]) == []
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-3)
    for model, pack in zip(models, reversed(packs)):
        with opened(model, pack, attend) as context:
            assert len(context.tokens) == 1031
            logits.append(context.decode(9).copy())
    np.testing.assert_allclose(logits[3], logits[2], rtol=0, atol=1e-3)


def test_what_is_cut_below_a_segment_is_written_again(models, tmp_path: Path) -> None:
    """The segment that was in files comes back, changes and is sealed again: as on the CPU."""
    packs = tmp_path / "cpu", tmp_path / "gpu"
    for model, pack in zip(models, packs):
        with written(model, pack) as context:
            context.truncate(1020)
            context.prefill([1, 2, 3, 4, 5, 6])
            context.commit()
            context.truncate(1022)
            context.prefill([9, 8, 7])
    check_same(*packs)
    cpu, gpu = (opened(models[0], pack, read_only=True).tokens for pack in packs)
    assert gpu == cpu and len(gpu) == 1025


def test_a_pack_is_only_read(models, tmp_path: Path) -> None:
    """New tokens stay in the GPU's memory."""
    pack = tmp_path / "pack"
    written(models[0], pack).close()
    before = {path: path.stat().st_mtime_ns for path in pack.iterdir()}
    rows = []
    for model in models:
        with opened(model, pack, read_only=True) as context:
            rows.append([context.prefill([3]).copy(), context.decode(4).copy()])
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-3)
    assert {path: path.stat().st_mtime_ns for path in pack.iterdir()} == before


def test_a_pack_that_was_read_without_an_index_is_indexed(models, tmp_path: Path) -> None:
    """At once, or with the next token; the file then holds the column."""
    pack, logits = tmp_path / "pack", []
    written(models[0], pack).close()
    for model in models:
        with opened(model, pack, kvarn.Hash(**SPARSE), read_only=True) as context:
            context.index()
            logits.append(context.decode(3).copy())
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-3)
    with opened(models[1], pack, kvarn.Hash(**SPARSE)) as context:
        context.decode(3)
    (index,) = pack.glob("index-*")
    assert index.stat().st_size >= CASE.n_layers * 4 * 1024


@pytest.mark.slow
def test_sketches_are_the_cpus(models, tmp_path: Path) -> None:
    """With two centres, the second after 2,048 tokens."""
    packs, attend = (tmp_path / "cpu", tmp_path / "gpu"), kvarn.TopK(**SPARSE)
    rows = []
    for model, pack in zip(models, packs):
        with written(model, pack, attend, 2046) as context:
            rows.append([context.decode(token).copy() for token in (5, 9, 2, 6)])
    np.testing.assert_allclose(rows[1], rows[0], rtol=0, atol=1e-3)
    check_same(*packs)
    names = {path.name for path in packs[1].glob("index-*")}
    assert any(name.endswith("-c2") for name in names)
