"""A 4-bit KV cache costs the default model next to nothing, thanks to its rotation."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

import kvarn
from kvarn.runtime.model import Model
from kvarn.runtime.perplexity import perplexity
from kvarn.runtime.store import Ram, RamStore

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, SAMPLE_TOKENS = 8, 400
N_CTX = 256


@pytest.fixture(scope="module")
def mini() -> Model:
    return kvarn.load(ROOT / "mini" / "kvarn-mini.gguf")


@pytest.fixture(scope="module")
def text(mini: Model) -> str:
    """Prose of the model's own: what rounding costs there is, on average, the divergence of what
    it says with and without; a page of anybody's moves by a hundredth with any rounding."""
    samplers = [kvarn.Sampler(temp=1, top_k=0, top_p=1, min_p=0, seed=i) for i in range(SAMPLES)]
    contexts = [mini.context(SAMPLE_TOKENS + 8) for _ in samplers]
    return "\n".join(
        "".join(context.generate("It was", SAMPLE_TOKENS, one))
        for context, one in zip(contexts, samplers, strict=True)
    )


def _value(model: Model, text: str, store: Ram) -> float:
    *_, result = perplexity(model, text, N_CTX, None, store)
    return result.value


def _rounded(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """x as gguf-py has it after Q4_0."""
    q4_0 = gguf.GGMLQuantizationType.Q4_0
    return gguf.quants.dequantize(gguf.quants.quantize(x, q4_0), q4_0).astype(np.float32)


def test_perplexity_is_within_a_hundredth_of_f16(
    mini: Model, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    f16, q4_0 = (_value(mini, text, Ram(kind, kind)) for kind in ("f16", "q4_0"))

    append = RamStore.append
    monkeypatch.setattr(
        RamStore,
        "append",
        lambda store, layer, k, v, start: append(store, layer, _rounded(k), _rounded(v), start),
    )
    plain = _value(mini, text, Ram("f16", "f16"))
    print(f"perplexity: f16 {f16:.3f}, q4_0 {q4_0:.3f}, q4_0 without rotation {plain:.3f}")
    assert abs(q4_0 / f16 - 1) < 0.01
    assert plain != f16  # the rounding without rotation was in effect
