"""The type table equals gguf-py's; rows are whole blocks."""

import gguf
import pytest
from gguf import quants

from kvarn.ops.errors import OpsError
from kvarn.ops.types import BY_ID, QUANT_TYPES, WITHDRAWN, row_bytes


def test_table_equals_gguf_py():
    theirs = {t.name: (int(t), *sizes) for t, sizes in gguf.GGML_QUANT_SIZES.items()}
    table = {t.name: (t.ggml_id, t.block, t.n_bytes) for t in QUANT_TYPES.values()}
    # An older gguf-py may know fewer types than the table, never others.
    assert {name: table[name] for name in theirs} == theirs
    assert {t.ggml_id: t for t in QUANT_TYPES.values()} == BY_ID
    assert not WITHDRAWN.keys() & BY_ID.keys()


def test_whatever_gguf_py_can_dequantise_can_be_loaded():
    can = {t.name for t in quants._type_traits} | {"F32", "F16"}
    for name, quant_type in QUANT_TYPES.items():
        if name in can:
            assert quant_type.treatment != "unsupported"
    assert QUANT_TYPES["Q4_K"].treatment in ("native", "repacked")
    assert QUANT_TYPES["IQ2_XS"].treatment == "re-encoded"
    assert QUANT_TYPES["I64"].treatment == "unsupported"


@pytest.mark.parametrize("name", sorted(QUANT_TYPES))
def test_row_bytes(name):
    quant_type = QUANT_TYPES[name]
    assert row_bytes(quant_type, 0) == 0
    assert row_bytes(quant_type, 3 * quant_type.block) == 3 * quant_type.n_bytes
    if quant_type.block > 1:
        with pytest.raises(OpsError, match=f"multiple of {quant_type.block}"):
            row_bytes(quant_type, quant_type.block + 1)
    with pytest.raises(OpsError):
        row_bytes(quant_type, -quant_type.block)
