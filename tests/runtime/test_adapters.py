"""Low-rank adapters: a model with them computes what the merged model computes, or says why not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import kvarn
from kvarn.models.errors import ModelError
from kvarn.runtime.loading import model_info
from kvarn.runtime.loading.adapters import AdapterError
from kvarn.runtime.model import Model
from kvarn.runtime.store import PackError
from kvarn.system.errors import KvarnError

from ..models import tiny_models
from ..models.adapters import CASES, SEED, projections, random_pairs, write_adapter, write_merged

CLOSE = 5e-3
"""K and V are stored as float16: a last bit of float32 may change their eleventh. The products
themselves are compared in `models/test_low_rank.py`."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters") / "llama.gguf"
    tiny_models.write(path, CASES["llama-mha"], SEED)
    return path


def logits(model: Model, ids: list[int], n_decoded: int, **methods: object) -> np.ndarray:
    """Logits after a prompt, and after each of its last tokens read one by one."""
    with model.context(256, **methods) as context:  # type: ignore[arg-type]
        rows = [context.prefill(ids[:-n_decoded]).copy()]
        rows += [context.decode(token).copy() for token in ids[-n_decoded:]]
    return np.stack(rows)


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Largest difference in units of b's spread."""
    return float(np.abs(a - b).max() / b.std())


@pytest.mark.parametrize("name", ["llama-mha", "llama-odd", "llama-fused", "gemma3", "qwen35"])
def test_contexts_compute_with_the_adapter(name: str, tmp_path: Path) -> None:
    case, rank = CASES[name], 5
    tiny_models.write(tmp_path / "model.gguf", case, SEED)
    pairs = random_pairs(projections(case), rank)
    adapter = write_adapter(tmp_path / "adapter.gguf", case.architecture, pairs, alpha=4.0)
    merged = write_merged(tmp_path / "merged.gguf", case, [(pairs, 0.5 * 4.0 / rank)])
    ids = tiny_models.prompt(case, SEED)
    wanted = logits(kvarn.load(merged), ids, 4)
    found = logits(kvarn.load(tmp_path / "model.gguf", lora=f"{adapter}:0.5"), ids, 4)
    assert difference(found, wanted) < CLOSE
    assert difference(logits(kvarn.load(tmp_path / "model.gguf"), ids, 4), wanted) > 0.1


def test_several_adapters_add_up(llama: Path, tmp_path: Path) -> None:
    case = CASES["llama-mha"]
    shapes = projections(case)
    first = random_pairs(shapes, 2, seed=1)
    second = random_pairs({n: s for n, s in shapes.items() if "ffn" in n}, 7, seed=2)
    names = [
        f"{write_adapter(tmp_path / 'first.gguf', 'llama', first, alpha=2.0)}:0.75",
        f"{write_adapter(tmp_path / 'second.gguf', 'llama', second, alpha=7.0)}:-0.25",
    ]
    merged = write_merged(tmp_path / "merged.gguf", case, [(first, 0.75), (second, -0.25)])
    ids = tiny_models.prompt(case, SEED)
    found = logits(kvarn.load(llama, lora=names), ids, 3)
    assert difference(found, logits(kvarn.load(merged), ids, 3)) < CLOSE


def test_a_row_has_the_bits_of_its_prompt_however_it_was_cut(llama: Path, tmp_path: Path) -> None:
    pairs = random_pairs(projections(CASES["llama-mha"]), 4)
    model = kvarn.load(llama, lora=write_adapter(tmp_path / "adapter.gguf", "llama", pairs))
    ids = tiny_models.prompt(CASES["llama-mha"], SEED)
    with model.context(256) as context:
        whole = context.prefill(ids).copy()
    with model.context(256) as context:
        for first in range(0, len(ids), 7):
            cut = context.prefill(ids[first : first + 7]).copy()
    np.testing.assert_array_equal(cut, whole)


@pytest.mark.parametrize("method", ["full", "topk", "hash"])
def test_contexts_that_decode_together_have_the_ids_that_they_have_alone(
    method: str, llama: Path, tmp_path: Path
) -> None:
    from kvarn.runtime.context.batch import Batch

    pairs = random_pairs(projections(CASES["llama-mha"]), 4)
    model = kvarn.load(llama, lora=write_adapter(tmp_path / "adapter.gguf", "llama", pairs))
    ids = tiny_models.prompt(CASES["llama-mha"], SEED)
    make = {"full": kvarn.Full, "topk": kvarn.TopK, "hash": kvarn.Hash}[method]
    alone = [logits(model, ids[i:], 6, attend=make()) for i in range(3)]
    contexts = [model.context(256, make()) for _ in range(3)]
    for i, context in enumerate(contexts):
        context.prefill(ids[i:-6])
    batch = Batch(model)
    for step in range(6):
        batch.decode_together(contexts, [ids[step - 6]] * 3)
        for context, rows in zip(contexts, alone, strict=True):
            np.testing.assert_array_equal(context.logits, rows[step + 1])


def test_scale_0_changes_nothing(llama: Path, tmp_path: Path) -> None:
    pairs = random_pairs(projections(CASES["llama-mha"]), 4)
    adapter = write_adapter(tmp_path / "adapter.gguf", "llama", pairs)
    ids = tiny_models.prompt(CASES["llama-mha"], SEED)
    found = logits(kvarn.load(llama, lora=f"{adapter}:0"), ids, 3)
    np.testing.assert_array_equal(found, logits(kvarn.load(llama), ids, 3))


def test_what_does_not_fit_is_refused_in_one_line(llama: Path, tmp_path: Path) -> None:
    shapes = projections(CASES["llama-mha"])
    good = random_pairs(shapes, 4)
    q = "blk.0.attn_q.weight"
    a, b = good[q]
    path = tmp_path / "adapter.gguf"

    def refused(expected: str, error: type[KvarnError] = AdapterError) -> None:
        with pytest.raises(error, match=expected) as raised:
            kvarn.load(llama, lora=path)
        assert "\n" not in str(raised.value)

    write_adapter(path, "qwen2", good)
    refused("it is for architecture qwen2, and llama.gguf has llama")
    write_adapter(path, "llama", good, general_type="model")
    refused("no low-rank adapter: found general.type model, expected adapter")
    write_adapter(path, "llama", good, adapter_type="control_vector")
    refused("found adapter.type control_vector, expected lora")
    write_adapter(path, "llama", {})
    refused("it has no tensors")
    write_adapter(path, "llama", good, alpha=float("inf"))
    refused("found adapter.lora.alpha inf")
    write_adapter(path, "llama", {"blk.9.attn_q.weight": (a, b)})
    refused(r"changes tensor blk.9.attn_q.weight, which the model does not have")
    write_adapter(path, "llama", {q: (a[:, 1:], b)})
    refused(r"blk.0.attn_q.weight has shape \(64, 64\) in the model, found lora_a \(4, 63\)")
    write_adapter(path, "llama", {q: (a, b[1:])})
    refused(r"and lora_b \(63, 4\)")
    write_adapter(path, "llama", {q: (a, b[:, 1:])})
    refused(r"lora_b \(64, 3\), expected \(R, columns\) and \(rows, R\)")
    write_adapter(path, "llama", {q: (a, np.full_like(b, np.nan))})
    refused("lora_b holds values that are not finite")
    embedding = random_pairs({"token_embd.weight": (97, 64)}, 2)
    write_adapter(path, "llama", embedding)
    refused("it changes token_embd.weight, expected matrices of attention", ModelError)
    path.unlink()
    refused(
        "adapter.gguf: no such file or folder; expected an adapter, FILE or FILE:SCALE", KvarnError
    )
    path.mkdir()
    refused("adapter.gguf is a folder: expected an adapter, FILE or FILE:SCALE", KvarnError)
    with pytest.raises(KvarnError, match="found scale nan, expected a finite number"):
        kvarn.load(llama, lora=f"{llama}:nan")


def test_a_single_half_of_a_pair_is_refused(llama: Path, tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "half.gguf", "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_tensor("blk.0.attn_q.weight.lora_b", np.zeros((64, 2), np.float32))
    tiny_models.finish(writer)
    with pytest.raises(AdapterError, match=r"tensor blk.0.attn_q.weight.lora_a is missing"):
        kvarn.load(llama, lora=tmp_path / "half.gguf")


def test_a_pack_opens_with_the_adapters_it_was_made_with(llama: Path, tmp_path: Path) -> None:
    shapes = projections(CASES["llama-mha"])
    adapter = write_adapter(tmp_path / "adapter.gguf", "llama", random_pairs(shapes, 4))
    other = write_adapter(tmp_path / "other.gguf", "llama", random_pairs(shapes, 4, seed=9))
    ids = tiny_models.prompt(CASES["llama-mha"], SEED)
    made = kvarn.load(llama, lora=f"{adapter}:0.5")
    with made.context(256, store=kvarn.Disk(tmp_path / "adapted")) as context:
        wanted = context.prefill(ids).copy()
    with kvarn.load(llama).context(256, store=kvarn.Disk(tmp_path / "plain")) as context:
        context.prefill(ids)
    moved = adapter.rename(tmp_path / "moved.gguf")
    with kvarn.load(llama, lora=f"{moved}:0.5").context(
        256, store=kvarn.Disk(tmp_path / "adapted", read_only=True)
    ) as context:
        np.testing.assert_array_equal(context.logits, wanted)
    for lora in ((), f"{moved}:0.6", f"{other}:0.5", [f"{moved}:0.5", f"{other}:0.5"]):
        with pytest.raises(PackError, match=r"made with adapters .*adapter.gguf:0.5.* lora, or"):
            kvarn.load(llama, lora=lora).context(256, store=kvarn.Disk(tmp_path / "adapted"))
    with pytest.raises(PackError, match=r"made with adapters none, found .*moved.gguf:1 "):
        kvarn.load(llama, lora=moved).context(256, store=kvarn.Disk(tmp_path / "plain"))


def test_mean_keys_are_measured_of_each_adapter(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[str] = []
    empty = SimpleNamespace(
        find=lambda name, parse: None, keep=lambda name, data: kept.append(name)
    )
    monkeypatch.setattr(model_info, "kernel_cache", empty)
    pairs = random_pairs(projections(CASES["llama-mha"]), 4, size=2.0)
    adapter = write_adapter(tmp_path / "adapter.gguf", "llama", pairs)
    ids = tiny_models.prompt(CASES["llama-mha"], SEED)
    for lora in ((), adapter):
        with kvarn.load(llama, lora=lora).context(256, store=kvarn.Ram("q4_0", "q4_0")) as context:
            context.prefill(ids)
    assert len(kept) == len(set(kept)) == 2
