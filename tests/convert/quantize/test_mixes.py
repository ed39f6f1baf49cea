"""Types of tensors: those that llama.cpp chooses, for every mix and kind of model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvarn.convert.errors import ConvertError
from kvarn.convert.quantize.mixes import MIXES, ModelFacts, mix_of, tensor_types
from kvarn.runtime.gguf import GGUFError, open_gguf

from ...models.tiny_models import finish
from . import mixed, models

GOLDEN = json.loads((Path(__file__).parent / "golden" / "mixes.json").read_text())


@pytest.mark.parametrize("name", mixed.CASES)
def test_types_are_those_that_llama_cpp_chooses(name: str, tmp_path: Path) -> None:
    case, path = mixed.CASES[name], tmp_path / "source.gguf"
    models.write(path, case.sizes, extra=mixed.EXTRA)
    before = models.types_of(path)
    with open_gguf(path) as file:
        facts = ModelFacts.of(file)
        shapes = {tensor.name: tensor.shape for tensor in file.tensors.values()}
    for mix in case.mixes:
        types = before | tensor_types(MIXES[mix], shapes, facts, case.with_importance)
        assert mixed.summary(types) == GOLDEN[name][mix], mix


@pytest.mark.parametrize("name", ["four experts, importance", "rows of 96"])
def test_the_golden_types_are_llama_cpps(name: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    for mix in ("q4_k_m", "q3_k_m", "q5_0"):
        types = mixed.chosen_by_llama_cpp(mixed.CASES[name], mix, tmp_path)
        assert mixed.summary(types) == GOLDEN[name][mix]


def test_names_of_mixes() -> None:
    assert mix_of("Q4_K") is mix_of("q4_k_m") is MIXES["q4_k_m"]
    with pytest.raises(ConvertError, match="unknown type 'q9'"):
        mix_of("q9")


def test_heads_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_head_count([8, 4])
    writer.add_head_count_kv([2, 4])
    writer.add_tensor("x", np.zeros(1, np.float32))
    finish(writer)
    with open_gguf(path) as file:
        facts = ModelFacts.of(file)
    assert (facts.n_heads, facts.n_kv_heads, facts.grouped) == (8, 2, True)


@pytest.mark.parametrize("heads", [["many"], [1.5], "eight"])
def test_heads_that_are_no_numbers_are_refused(heads: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_key_value("llama.attention.head_count", heads, *value_types(heads))
    writer.add_tensor("x", np.zeros(1, np.float32))
    finish(writer)
    with open_gguf(path) as file, pytest.raises(GGUFError, match=r"head_count: found .* a number"):
        ModelFacts.of(file)


def value_types(value: Any) -> tuple[gguf.GGUFValueType, ...]:
    if isinstance(value, str):
        return (gguf.GGUFValueType.STRING,)
    items = gguf.GGUFValueType.get_type(value[0])
    return gguf.GGUFValueType.ARRAY, items
