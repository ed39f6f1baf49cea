"""What a 4-bit KV cache costs the default model, with its rotation and without."""

import random
from itertools import islice
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

import kvarn
from kvarn.evals.tasks import Plain
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.model import Model
from kvarn.runtime.perplexity import perplexity
from kvarn.runtime.store import Ram, RamStore

# From A Tale of Two Cities, by Charles Dickens, 1859.
PAGE = (Path(__file__).parent / "golden" / "two_cities.txt").read_text(encoding="utf-8")
SAMPLES, SAMPLE_TOKENS = 8, 400
N_CTX = 256


@pytest.fixture(scope="module")
def mini() -> Model:
    return kvarn.load(default_model_path())


@pytest.fixture(scope="module")
def prose(mini: Model) -> str:
    """The model's own: what rounding costs there is, on average, the divergence of what it says
    with and without; a page of anybody's moves by a hundredth with any rounding."""
    samplers = [kvarn.Sampler(temp=1, top_k=0, top_p=1, min_p=0, seed=i) for i in range(SAMPLES)]
    contexts = [mini.context(SAMPLE_TOKENS + 8) for _ in samplers]
    return "\n".join(
        "".join(context.generate("It was", SAMPLE_TOKENS, one))
        for context, one in zip(contexts, samplers, strict=True)
    )


@pytest.fixture(scope="module")
def made_up() -> str:
    """A page, and sentences of a dozen forms: most of it is recalled rather than foreseen."""
    return PAGE + "".join(islice(Plain().sentences(random.Random(5)), 400))


def _value(model: Model, text: str, store: Ram) -> float:
    *_, result = perplexity(model, text, N_CTX, None, store)
    return result.value


def _cost(model: Model, text: str) -> float:
    """By how much of itself perplexity rises with K and V in q4_0."""
    f16, q4_0 = (_value(model, text, Ram(kind, kind)) for kind in ("f16", "q4_0"))
    print(f"perplexity: f16 {f16:.3f}, q4_0 {q4_0:.3f}")
    return q4_0 / f16 - 1


def _rounded(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """x as gguf-py has it after Q4_0."""
    q4_0 = gguf.GGMLQuantizationType.Q4_0
    return gguf.quants.dequantize(gguf.quants.quantize(x, q4_0), q4_0).astype(np.float32)


def test_prose_costs_less_than_a_hundredth(mini: Model, prose: str) -> None:
    assert abs(_cost(mini, prose)) < 0.01


def test_made_up_sentences_cost_less_than_a_hundredth(mini: Model, made_up: str) -> None:
    assert abs(_cost(mini, made_up)) < 0.01


def test_rounding_without_the_rotation_is_another(
    mini: Model, prose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    f16 = _value(mini, prose, Ram("f16", "f16"))
    append = RamStore.append
    monkeypatch.setattr(
        RamStore,
        "append",
        lambda store, layer, k, v, start: append(store, layer, _rounded(k), _rounded(v), start),
    )
    plain = _value(mini, prose, Ram("f16", "f16"))
    print(f"perplexity: f16 {f16:.3f}, q4_0 without rotation {plain:.3f}")
    assert plain != f16
