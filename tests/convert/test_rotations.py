"""Rotations of converted models: frequencies and amplitudes that transformers computes.

The golden file is made by `golden/make_rotations.py`, from config.json as here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kvarn.convert.hf.architectures import architecture_of, check
from kvarn.convert.hf.config import Config
from kvarn.convert.hf.metadata.rope import factor_tensors
from kvarn.models import ModelConfig, RopeConfig
from kvarn.models.rope import frequencies

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden/rotations.json").read_text())


def converted(values: dict[str, Any]) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """What a reader of the converted file finds: the configuration, and tensors of factors."""
    architecture = architecture_of(values)
    config = Config(values, architecture.defaults)
    check(architecture, config)
    tensors = factor_tensors(architecture.name, config)
    writer = gguf.GGUFWriter(None, architecture.name)
    architecture.add_keys(writer, config)
    metadata = {key: value.value for key, value in writer.kv_data[0].items()}
    return ModelConfig.from_metadata(metadata | {"tokenizer.ggml.tokens": ["x"] * 10}), tensors


def same_rotation(
    rope: RopeConfig | None, factors: np.ndarray | None, expected: dict[str, Any]
) -> None:
    assert rope is not None
    # transformers computes powers and their sums in float32.
    np.testing.assert_allclose(frequencies(rope, factors), expected["frequencies"], rtol=2e-6)
    assert rope.amplitude == pytest.approx(expected["amplitude"], rel=1e-6)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_converted_model_rotates_as_transformers_does(name: str) -> None:
    config, tensors = converted(GOLDEN[name]["config"])
    expected = GOLDEN[name]["rotations"]
    windowed = next(layer for layer in config.kv_layers if layer.rope is not None)
    distant = next(layer for layer in reversed(config.kv_layers) if layer.rope is not None)
    short = tensors.get("rope_factors_short.weight", tensors.get("rope_freqs.weight"))
    same_rotation(distant.rope, short, expected["global"])
    same_rotation(windowed.rope, short, expected.get("windowed", expected["global"]))
    if "long" in expected:
        same_rotation(distant.rope, tensors["rope_factors_long.weight"], expected["long"])
        assert config.n_ctx_orig == 2048
