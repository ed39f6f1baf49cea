"""The GGUF format: every field of a file, value type ids, and the limits that kvarn sets.

    magic       "GGUF"
    version     u32         1, 2 or 3; another byte order shows here
    n_tensors   count       count: u64, in version 1 u32
    n_keys      count
    n_keys  x   key         string      string: count of bytes, bytes (UTF-8, no terminator)
                type        u32         a value type below
                value                   number | bool (1 byte) | string | array
                                        array: type u32, count, values without gaps
    n_tensors x name        string
                n_dims      u32         1 to 4
                dims        n_dims counts, the fastest first: (columns, rows, …)
                type        u32         a type of ops/types.py
                offset      u64         from the start of the data, a multiple of the alignment
    padding to the alignment (metadata `general.alignment`, else 32)
    data        each tensor at its offset

Source: docs/gguf.md of ggml.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from ...system.files import GGUF_MAGIC

MAGIC = GGUF_MAGIC
VERSIONS = (1, 2, 3)
DEFAULT_ALIGNMENT = 32
# Magic, version and two counts of version 1.
MIN_FILE_BYTES = 16

# Limits on all that is read item by item or decoded: no file takes unbounded time, or much more
# memory than its own size. The largest published models have some 800,000 strings, 20 MB of
# arrays, 200 keys and 2,000 tensors per file; hash encoders take some 20 MB of base64 per layer.
MAX_ITEMS = 5 << 18
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 14
MAX_ARRAY_BYTES = 48 << 20  # of all arrays together
MAX_ITEM_BYTES = 1 << 16  # of a string in an array: they are decoded many at a time
MAX_STRING_BYTES = 64 << 20
# A single character beyond U+FFFF makes Python store a whole string in four bytes per character:
# longer strings must be ASCII.
MAX_TEXT_BYTES = 1 << 20
MAX_ARRAY_DEPTH = 4
# Reading an array inside an array takes about as long as this many strings.
NESTED_ARRAY_ITEMS = 64
MAX_DIMS = 4
# The format's own limits on names.
MAX_KEY_BYTES = (1 << 16) - 1
MAX_TENSOR_NAME_BYTES = 64


class ValueType(IntEnum):
    """Type ids of metadata values. (To import gguf-py's takes longer than to open a model.)"""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


# NumPy's name of each fixed-size type; a bool is one byte, 0 or 1.
NUMBERS: dict[ValueType, str] = {
    ValueType.U8: "<u1",
    ValueType.I8: "<i1",
    ValueType.U16: "<u2",
    ValueType.I16: "<i2",
    ValueType.U32: "<u4",
    ValueType.I32: "<i4",
    ValueType.F32: "<f4",
    ValueType.BOOL: "<u1",
    ValueType.U64: "<u8",
    ValueType.I64: "<i8",
    ValueType.F64: "<f8",
}

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
