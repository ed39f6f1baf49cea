"""Dequantisation is gguf-py's bit for bit; the Q8_0 encoder is ggml's."""

import warnings

import gguf
import numpy as np
import pytest

from kvarn.ops.errors import OpsError
from kvarn.ops.reference.quants import DECODERS, chunks, dequantise, encode_q8_0, re_encode_q8_0
from kvarn.ops.types import QUANT_TYPES

ENCODED_BY_GGUF = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "BF16"]


def oracle(type_name, data):
    qtype = gguf.GGMLQuantizationType(QUANT_TYPES[type_name].ggml_id)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.ascontiguousarray(gguf.quants.dequantize(data, qtype))


@pytest.mark.parametrize("type_name", DECODERS)
def test_any_bytes_decode_as_gguf_py_does(type_name):
    """NaN and infinite scales included."""
    quant_type = QUANT_TYPES[type_name]
    n_bytes = quant_type.n_bytes * (512 if quant_type.block == 1 else 40)
    data = np.random.default_rng(0).integers(0, 256, (7, n_bytes), dtype=np.uint8)
    ours, theirs = dequantise(quant_type, data), oracle(type_name, data)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("type_name", ENCODED_BY_GGUF)
def test_encoded_weights_decode_as_gguf_py_does(type_name):
    x = np.random.default_rng(1).normal(size=(5, 256)).astype(np.float32)
    qtype = gguf.GGMLQuantizationType(QUANT_TYPES[type_name].ggml_id)
    data = gguf.quants.quantize(x, qtype)
    ours = dequantise(QUANT_TYPES[type_name], data)
    np.testing.assert_array_equal(ours.view(np.uint32), oracle(type_name, data).view(np.uint32))


def test_the_shape_of_the_rows_is_kept():
    data = np.zeros((2, 3, 68), np.uint8)
    assert dequantise(QUANT_TYPES["Q8_0"], data).shape == (2, 3, 64)


def test_types_without_a_decoder_go_through_gguf_py():
    data = np.random.default_rng(0).integers(0, 60, (4, 66), dtype=np.uint8)
    ours = dequantise(QUANT_TYPES["TQ2_0"], data)
    np.testing.assert_array_equal(ours, oracle("TQ2_0", data))


def test_what_cannot_be_decoded_is_refused():
    with pytest.raises(OpsError, match="multiple of 34"):
        dequantise(QUANT_TYPES["Q8_0"], np.zeros((1, 33), np.uint8))
    with pytest.raises(OpsError, match="I64"):
        dequantise(QUANT_TYPES["I64"], np.zeros((1, 8), np.uint8))
    with pytest.raises(OpsError, match="multiple of 32"):
        encode_q8_0(np.zeros((1, 33), np.float32))


def test_q8_0_is_encoded_as_ggml_does():
    x = np.random.default_rng(2).normal(size=(50, 96)).astype(np.float32)
    x[0, :32], x[1] = 0, np.rint(x[1] * 4) / 8
    np.testing.assert_array_equal(
        encode_q8_0(x), gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    )


def test_re_encoding_in_parts_changes_nothing():
    data = np.random.default_rng(0).integers(0, 60, (9, 66), dtype=np.uint8)
    whole = encode_q8_0(oracle("TQ2_0", data))
    np.testing.assert_array_equal(re_encode_q8_0(QUANT_TYPES["TQ2_0"], data, 256), whole)
    assert list(chunks(5, 10, 20)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(chunks(2, 100, 20)) == [slice(0, 1), slice(1, 2)]
