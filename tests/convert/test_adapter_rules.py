"""An adapter goes through the rules of its model: converted and merged is merged and converted.

For mixtures, hybrids and fused matrices, whose rows and columns the files have in other orders.
Folders in which one thing is wrong are refused in one line.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvarn.convert.hf import convert
from kvarn.convert.hf.peft import convert_adapter
from kvarn.convert.quantize.mixes import mix_of
from kvarn.system.errors import KvarnError

from . import stored_adapters, stored_models, vocabularies
from .hf_folders import write_safetensors
from .stored_adapters import StoredAdapter

F32 = mix_of("f32")
SETTINGS = {"peft_type": "LORA", "r": 3, "lora_alpha": 6}
_NO_TARGETS = ("norm", "embed", ".experts.", "mtp.", "visual.", "vision", "kv_b_proj")


def targets(stored: stored_models.Stored) -> dict[str, list[int]]:
    """Shapes of the matrices that an adapter can change."""
    shared = stored.config.get("tie_word_embeddings") or "lm_head.weight" not in stored.shapes
    return {
        name: shape
        for name, shape in stored.shapes.items()
        if name.endswith(".weight")
        and len(shape) == 2
        and not any(part in name for part in _NO_TARGETS)
        and not (shared and name == "lm_head.weight")
    }


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    return {t.name: t.data for t in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("name", stored_models.NAMES)
def test_merging_before_and_after_the_conversion_is_the_same(name: str, tmp_path: Path) -> None:
    stored = stored_models.Stored.read(name)
    stored.write(tmp_path / "plain")
    weights = stored_models.weights(stored.shapes)
    factors = {}
    rng = np.random.default_rng(2)
    for target, (n_rows, n_columns) in targets(stored).items():
        a = rng.standard_normal((3, n_columns)).astype(np.float32)
        b = rng.standard_normal((n_rows, 3)).astype(np.float32)
        module = f"base_model.model.{target.removesuffix('.weight')}"
        factors |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
        weights[target] = weights[target] + 2.0 * b @ a
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(SETTINGS))
    write_safetensors(tmp_path / "adapter/adapter_model.safetensors", factors)
    stored.write(tmp_path / "merged")
    write_safetensors(tmp_path / "merged/model.safetensors", weights)
    for kind in ("plain", "merged"):
        vocabularies.save_sentencepiece(tmp_path / kind)
        convert(tmp_path / kind, tmp_path / f"{kind}.gguf", F32)
    bases = ["plain", "plain.gguf"]
    if stored.config["model_type"] == "falcon_h1":
        with pytest.raises(KvarnError, match="do not tell what their weights were multiplied by"):
            convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", F32, tmp_path / bases.pop())
    for base in bases:
        convert_adapter(tmp_path / "adapter", tmp_path / "a.gguf", F32, tmp_path / base)
        plain, merged, adapter = (
            tensors_of(tmp_path / f"{kind}.gguf") for kind in ("plain", "merged", "a")
        )
        changed = {n for n in plain if not np.array_equal(plain[n], merged[n])}
        assert {n.rpartition(".lora_")[0] for n in adapter} == changed
        for n in changed:
            added = 2.0 * adapter[f"{n}.lora_b"] @ adapter[f"{n}.lora_a"]
            np.testing.assert_allclose(plain[n] + added, merged[n], rtol=0, atol=1e-5)


VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 1e39, float("nan"), "", "x", "\ud800", "\0", "../..", [], {}, [1],
    {"q_proj": None}, {"q_proj": 2**65}, {"": 4}, {"[": 1}, {"a{99999999999}": 1}, {"(?P<": 4},
    {"\\": 3}, {"q_proj)|(.*": 4}, "a" * 5000,
)  # fmt: skip
ENTRIES = (*VALUES, "F16", "U8", "F8_E4M3", [4, 64], [0, 4], [64], [2, 2, 64], [1, 256], [256, 1])
PARTS = ("", "x", "99999", "experts", "language_model", "bias", "norm", "A_log", "sinks", "l\n")


def spoil(rng: random.Random, stored: StoredAdapter, folder: Path) -> None:
    """Change one thing: of the settings, of the model's configuration, or of the tensors."""
    kind = rng.choice(("settings", "config", "entry", "name", "bytes"))
    if kind in ("settings", "config"):
        path = folder / ("a/adapter_config.json" if kind == "settings" else "hf/config.json")
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | {rng.choice([*values]): rng.choice(VALUES)}))
        return
    path = folder / "a/adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    name = rng.choice([*stored.shapes])
    if kind == "bytes":
        data[rng.randrange(end)] = rng.randrange(256)
    elif kind == "entry":
        header[name][rng.choice(("dtype", "shape", "data_offsets"))] = rng.choice(ENTRIES)
    else:
        parts = name.split(".")
        parts[rng.randrange(len(parts))] = rng.choice(PARTS)
        header[".".join(parts)] = header.pop(name)
    if kind != "bytes":
        encoded = json.dumps(header).encode()
        data = bytearray(len(encoded).to_bytes(8, "little") + encoded + data[end:])
    path.write_bytes(data)


def test_folders_with_one_fault_are_converted_or_refused_in_one_line(tmp_path: Path) -> None:
    rng, refused = random.Random(1), 0
    for number in range(200):
        stored = StoredAdapter.read(rng.choice(stored_adapters.NAMES))
        folder = tmp_path / str(number)
        stored.write_model(folder / "hf")
        stored.write(folder / "a")
        spoil(rng, stored, folder)
        try:
            convert_adapter(folder / "a", folder / "out.gguf", F32, folder / "hf")
        except KvarnError as error:
            assert "\n" not in str(error)
            assert not (folder / "out.gguf").exists()
            refused += 1
        else:
            assert all(np.isfinite(x).all() for x in tensors_of(folder / "out.gguf").values())
    assert 100 < refused < 190
