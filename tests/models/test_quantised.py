"""Quantised models against llama.cpp, the same tokens fed to both.

Both round activations to int8 blocks, each in its own way, so logits agree up to a noise. What
llama.cpp's rounding does is measured: its distance from exact arithmetic on the decoded weights.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvarn.models import ModelConfig
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.runtime.gguf import open_gguf

from . import plain, tiny_quants

pytestmark = pytest.mark.usefixtures("one_thread")

GOLDEN = Path(__file__).parent / "golden" / "quantised.npz"


@pytest.fixture(scope="module")
def exact() -> dict[str, np.ndarray]:
    """Logits of every type on decoded weights, without quantised arithmetic."""
    results = {}
    for kind in tiny_quants.KINDS:
        with pytest.MonkeyPatch.context() as patch:
            plain.use_plain_ops(patch)
            config = ModelConfig.from_metadata(tiny_quants.metadata(kind))
            weights = Weights.load(tiny_quants.array_tensors(kind), config)
            model = Transformer(config, weights, 64)
            results[kind] = plain.read(model, plain.PlainAttention(config), tiny_quants.ids())
    return results


@pytest.mark.parametrize("kind", tiny_quants.KINDS)
def test_llama_cpp_reads_these_files_as_we_do(kind: str, exact: dict[str, np.ndarray]) -> None:
    with np.load(GOLDEN) as golden:
        theirs = golden[kind].astype(np.float32)
    # int8 activations of blocks of 32 (256 for k-quants) have relative errors of about 0.5%, which
    # two layers and peaked attention multiply; BF16 weights make activations BF16 (0.4%) as well.
    assert (theirs - exact[kind]).std() < 0.05 * exact[kind].std()


@pytest.mark.parametrize("chunk", [1, 48])
@pytest.mark.parametrize("kind", tiny_quants.KINDS)
def test_same_choice_as_llama_cpp_wherever_noise_cannot_decide(
    kind: str,
    chunk: int,
    exact: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.gguf"
    tiny_quants.write(path, kind)
    with open_gguf(path) as file:
        config = ModelConfig.from_metadata(file.metadata)
        model = Transformer(config, Weights.load(file.tensors, config), 64)
        attention = plain.PlainAttention(config)
        logits = plain.read(model, attention, tiny_quants.ids(), chunk)
    with np.load(GOLDEN) as golden:
        theirs = golden[kind].astype(np.float32)
    noise = (theirs - exact[kind]).std()
    top = np.sort(theirs, axis=1)
    decided = top[:, -1] - top[:, -2] > 4 * noise
    assert decided.sum() > len(top) // 2
    assert (logits.argmax(1) == theirs.argmax(1))[decided].all()
    # Int8 blocks of 32 are the finest that llama.cpp uses; floats are not rounded at all.
    assert (logits - exact[kind]).std() < max(2 * noise, 0.02 * exact[kind].std())
