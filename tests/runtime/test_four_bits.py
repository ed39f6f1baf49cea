"""A 4-bit KV cache costs the default model next to nothing, thanks to its rotation."""

import random
from itertools import islice
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

import kvarn
from kvarn.evals.tasks import Plain
from kvarn.runtime.model import Model
from kvarn.runtime.perplexity import perplexity
from kvarn.runtime.store import Ram, RamStore

ROOT = Path(__file__).resolve().parents[2]
# A page of A Tale of Two Cities, by Charles Dickens, 1859: too short by itself, where rounding of
# any kind moves its perplexity by a hundredth. So made-up sentences follow it.
PAGE = (Path(__file__).parent / "golden" / "two_cities.txt").read_text(encoding="utf-8")
TEXT = PAGE + "".join(islice(Plain().sentences(random.Random(5)), 400))
N_CTX = 256


@pytest.fixture(scope="module")
def mini() -> Model:
    return kvarn.load(ROOT / "mini" / "kvarn-mini.gguf")


def _value(model: Model, store: Ram) -> float:
    *_, result = perplexity(model, TEXT, N_CTX, None, store)
    return result.value


def _rounded(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """x as gguf-py has it after Q4_0."""
    q4_0 = gguf.GGMLQuantizationType.Q4_0
    return gguf.quants.dequantize(gguf.quants.quantize(x, q4_0), q4_0).astype(np.float32)


def test_perplexity_is_within_a_hundredth_of_f16(
    mini: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    f16, q4_0 = _value(mini, Ram("f16", "f16")), _value(mini, Ram("q4_0", "q4_0"))

    append = RamStore.append
    monkeypatch.setattr(
        RamStore,
        "append",
        lambda store, layer, k, v, start: append(store, layer, _rounded(k), _rounded(v), start),
    )
    plain = _value(mini, Ram("f16", "f16"))
    print(f"perplexity: f16 {f16:.3f}, q4_0 {q4_0:.3f}, q4_0 without rotation {plain:.3f}")
    assert abs(q4_0 / f16 - 1) < 0.01
    assert plain != f16  # the rounding without rotation was in effect
