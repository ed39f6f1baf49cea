"""Dequantisation and the Q8_0 encoder are gguf-py's, whose bits are ggml's; floats are NumPy's."""

import gguf
import numpy as np
import pytest

from kvarn.ops.errors import OpsError
from kvarn.ops.reference.quants import chunks, dequantise, re_encode_q8_0
from kvarn.ops.types import QUANT_TYPES


def test_floats_keep_their_bits():
    """NaN included; gguf-py is not asked."""
    data = np.random.default_rng(0).integers(0, 256, (7, 3, 512), dtype=np.uint8)
    f32 = dequantise(QUANT_TYPES["F32"], data[::2])
    np.testing.assert_array_equal(f32.view(np.uint8), data[::2])
    f16 = dequantise(QUANT_TYPES["F16"], data)
    np.testing.assert_array_equal(f16, data.view(np.float16))
    bf16 = dequantise(QUANT_TYPES["BF16"], data)
    np.testing.assert_array_equal(bf16.view(np.uint32) >> 16, data.view(np.uint16))
    assert (f32.dtype, f16.dtype, f16.shape) == (np.float32, np.float32, (7, 3, 256))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("type_name", ["Q4_0", "Q6_K", "MXFP4", "TQ2_0"])
def test_any_bytes_decode(type_name):
    """NaN and infinite scales included, without a warning; rows in any place."""
    quant_type = QUANT_TYPES[type_name]
    shape = 14, 3, 40 * quant_type.n_bytes
    data = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    values = dequantise(quant_type, data[::2])
    assert values.dtype == np.float32 and values.shape == (7, 3, 40 * quant_type.block)
    alone = dequantise(quant_type, data[2, 1:2])
    np.testing.assert_array_equal(values[1, 1:2].view(np.uint32), alone.view(np.uint32))


def test_what_cannot_be_decoded_is_refused():
    with pytest.raises(OpsError, match="multiple of 34"):
        dequantise(QUANT_TYPES["Q8_0"], np.zeros((1, 33), np.uint8))
    with pytest.raises(OpsError, match="I64"):
        dequantise(QUANT_TYPES["I64"], np.zeros((1, 8), np.uint8))
    with pytest.raises(OpsError, match="multiple of 32"):
        re_encode_q8_0(QUANT_TYPES["F32"], np.zeros((1, 4 * 33), np.uint8), 33)


def test_re_encoding_in_parts_changes_nothing():
    data = np.random.default_rng(0).integers(0, 60, (9, 66), dtype=np.uint8)
    q8_0, tq2_0 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.TQ2_0
    whole = gguf.quants.quantize(gguf.quants.dequantize(data, tq2_0), q8_0)
    np.testing.assert_array_equal(re_encode_q8_0(QUANT_TYPES["TQ2_0"], data, 256), whole)
    assert list(chunks(5, 10, 20)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(chunks(2, 100, 20)) == [slice(0, 1), slice(1, 2)]
