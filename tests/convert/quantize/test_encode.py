"""Encoders: bytes equal to gguf-py's where it has them, errors no larger than llama.cpp's."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from kvarn.convert.quantize import ENCODABLE, EncodeError, encode
from kvarn.jit import threads
from kvarn.ops.arrays import F32
from kvarn.ops.reference.quants import dequantise
from kvarn.ops.types import QUANT_TYPES
from kvarn.runtime.engine import on_engine

EXACT = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
SEARCHED = tuple(name for name in ENCODABLE if name not in ("F32", "F16", "BF16", "Q8_0"))
# Relative squared error of normally distributed weights, rounded up: what the bits allow.
NORMAL_ERROR = {
    "F32": 0.0, "F16": 1e-7, "BF16": 4e-6, "Q8_0": 3e-5, "Q6_K": 3e-4, "Q5_K": 1.5e-3,
    "Q5_0": 2.5e-3, "Q5_1": 2e-3, "Q4_K": 6e-3, "IQ4_NL": 6.5e-3, "Q4_0": 1e-2, "Q4_1": 8e-3,
    "Q3_K": 2.5e-2, "Q2_K": 8e-2,
}  # fmt: skip


def weights(n_rows: int, n_cols: int, seed: int = 0) -> F32:
    """Weights with heavier tails than a normal distribution, rows and columns of several sizes."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.normal(0, 0.3, (n_rows, 1)) + rng.normal(0, 0.3, n_cols))
    return (0.02 * rng.standard_t(5, (n_rows, n_cols)) * sizes).astype(np.float32)


def importances(n_cols: int) -> F32:
    """Mean squares of activations: few large, many small."""
    return np.exp(np.random.default_rng(1).normal(0, 1.5, n_cols)).astype(np.float32)


def error(x: F32, data: NDArray[np.uint8], type_name: str, importance: F32 | None = None) -> float:
    off = dequantise(QUANT_TYPES[type_name], data).astype(np.float64) - x
    return float((off * off * (1.0 if importance is None else importance)).sum())


def by_gguf_py(x: F32, type_name: str) -> NDArray[np.uint8]:
    data = gguf.quants.quantize(x, gguf.GGMLQuantizationType[type_name])
    return np.ascontiguousarray(data).view(np.uint8)


@pytest.mark.parametrize("type_name", EXACT)
@pytest.mark.parametrize("n_cols", [32, 96, 512])
def test_simple_types_have_the_bytes_of_gguf_py(type_name: str, n_cols: int) -> None:
    x = weights(9, n_cols)
    x[1] = np.round(x[1] * 400) / 8  # ties
    x[2, :32], x[3], x[4] = 0, 0.5, -abs(x[4])
    np.testing.assert_array_equal(encode(x, type_name), by_gguf_py(x, type_name))


@pytest.mark.parametrize("type_name", ["F16", "BF16"])
@pytest.mark.parametrize("n_cols", [1, 15, 17])
def test_floats_take_rows_of_any_length(type_name: str, n_cols: int) -> None:
    x = weights(5, n_cols)
    encoded = encode(x, type_name)
    expected = x.astype(np.float16) if type_name == "F16" else by_gguf_py(x, "BF16")
    np.testing.assert_array_equal(encoded, expected.view(np.uint8))


@settings(max_examples=30, deadline=None)
@given(
    x=arrays(np.float32, (2, 32), elements=st.floats(-60000, 60000, width=32)).filter(
        # Whether the smallest of some zeros is -0 depends on the order of a reduction.
        lambda x: not np.any(np.signbit(x) & (x == 0))
    ),
    type_name=st.sampled_from(EXACT),
)
def test_any_finite_weights_have_the_bytes_of_gguf_py(x: F32, type_name: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        expected = by_gguf_py(x, type_name)
    np.testing.assert_array_equal(encode(x, type_name), expected)


@pytest.mark.parametrize("type_name", ENCODABLE)
def test_normal_weights_come_back_as_exactly_as_the_bits_allow(type_name: str) -> None:
    x = np.random.default_rng(0).standard_normal((16, 512)).astype(np.float32)
    assert error(x, encode(x, type_name.lower()), type_name) <= NORMAL_ERROR[type_name] * x.size


@pytest.mark.parametrize("with_importance", [False, True])
@pytest.mark.parametrize("type_name", SEARCHED)
def test_errors_are_no_larger_than_llama_cpps(type_name: str, with_importance: bool) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from . import ggml

    x, importance = weights(32, 1024), importances(1024) if with_importance else None
    ours = error(x, encode(x, type_name, importance), type_name, importance)
    theirs = error(x, ggml.quantise_rows(x, type_name, importance), type_name, importance)
    assert ours <= 1.01 * theirs


@pytest.mark.parametrize("type_name", SEARCHED)
def test_importance_lowers_the_error_that_it_weighs(type_name: str) -> None:
    x, importance = weights(16, 512), importances(512)
    plain, weighed = encode(x, type_name), encode(x, type_name, importance)
    assert error(x, weighed, type_name, importance) < error(x, plain, type_name, importance)


@settings(max_examples=60, deadline=None)
@given(
    x=arrays(
        np.float32,
        (1, 256),
        elements=st.one_of(st.just(0.0), st.floats(0.015625, 65504, width=32)),
        fill=st.just(0.0),
    ),
    signs=arrays(np.bool_, 256),
    importance=st.one_of(st.none(), arrays(np.float32, 256, elements=st.floats(0, 1e6, width=32))),
    type_name=st.sampled_from(SEARCHED),
)
def test_no_weights_are_worse_than_zeros(
    x: F32, signs: NDArray[np.bool_], importance: F32 | None, type_name: str
) -> None:
    """Outliers, one-sided, constant and sparse blocks."""
    x = np.where(signs, -x, x)
    data = encode(x, type_name, importance)
    decoded = dequantise(QUANT_TYPES[type_name], data)
    assert np.isfinite(decoded).all()
    # Where all that matters is zero, what is left of the error comes from columns without weight.
    floor = 1e-5 * float(np.mean(importance)) if importance is not None else 0.0
    most = float((x.astype(np.float64) ** 2 * (1 if importance is None else importance)).sum())
    assert error(x, data, type_name, importance) <= 1.001 * most + floor * float((x**2).sum())


@pytest.mark.parametrize("type_name", ENCODABLE)
def test_the_bytes_do_not_depend_on_the_threads(type_name: str) -> None:
    x, importance = weights(40, 512), importances(512)
    before = on_engine(threads.n_threads)
    encoded = []
    try:
        for n in (1, threads.max_threads()):
            on_engine(threads.set_threads, n)
            encoded.append(encode(x, type_name, importance))
    finally:
        on_engine(threads.set_threads, before)
    np.testing.assert_array_equal(*encoded)


@pytest.mark.parametrize("type_name", SEARCHED)
def test_a_row_does_not_depend_on_the_others(type_name: str) -> None:
    x = weights(5, 256)
    np.testing.assert_array_equal(encode(x, type_name)[3:4], encode(x[3:4].copy(), type_name))


@pytest.mark.parametrize("type_name", SEARCHED)
def test_only_the_ratios_of_importances_count(type_name: str) -> None:
    x, importance = weights(4, 256), importances(256)
    np.testing.assert_array_equal(
        encode(x, type_name, importance), encode(x, type_name, importance * np.float32(1024))
    )


def test_importances_of_zero_are_no_importances() -> None:
    x = weights(2, 256)
    np.testing.assert_array_equal(
        encode(x, "Q4_K", np.zeros(256, np.float32)), encode(x, "Q4_K", None)
    )


@pytest.mark.parametrize("type_name", SEARCHED)
def test_the_largest_weights_that_fit(type_name: str) -> None:
    x = np.full((1, 256), 65504, np.float32)
    x[0, ::3], x[0, 1::7] = -65504, 1000
    for importance in (None, importances(256)):
        data = encode(x, type_name, importance)
        assert error(x, data, type_name) < 0.1 * float((x.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("type_name", SEARCHED)
def test_weights_too_small_for_their_scale_become_zeros(type_name: str) -> None:
    x = weights(2, 256) * np.float32(1e-12)
    for importance in (None, importances(256)):
        decoded = dequantise(QUANT_TYPES[type_name], encode(x, type_name, importance))
        assert not decoded.any()


def test_it_writes_into_out() -> None:
    x, out = weights(3, 256), np.empty((3, 144), np.uint8)
    assert encode(x, "Q4_K", out=out) is out
    np.testing.assert_array_equal(out, encode(x, "Q4_K"))
    assert encode(np.empty((0, 256), np.float32), "Q4_K").shape == (0, 144)


@pytest.mark.parametrize("place", [(0, 0), (2, 255), (1, 17)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 70000.0])
def test_weights_that_no_scale_can_hold_are_refused(place: tuple[int, int], value: float) -> None:
    x = weights(3, 256)
    x[place] = value
    for kind in ("Q6_K", "F16"):
        with pytest.raises(EncodeError, match=f"row {place[0]}, column {place[1]},") as refused:
            encode(x, kind)
        assert ("bf16 and f32 hold" in str(refused.value)) == (value == 70000.0)
    if value == 70000.0:
        assert encode(x, "BF16").shape == (3, 512)


def test_what_does_not_fit_is_refused() -> None:
    x = weights(2, 256)
    with pytest.raises(EncodeError, match="without an encoder"):
        encode(x, "IQ2_XS")
    with pytest.raises(EncodeError, match="contiguous"):
        encode(x[:, ::2], "Q8_0")
    with pytest.raises(EncodeError, match="out float32"):
        encode(x, "Q8_0", out=np.empty((2, 272), np.float32))  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match=r"\(255,\) importances"):
        encode(x, "Q4_K", np.ones(255, np.float32))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(EncodeError, match="negative or not finite"):
            encode(x, "Q4_K", np.array([bad] + [1.0] * 255, np.float32))
