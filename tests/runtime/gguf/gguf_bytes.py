"""GGUF files written byte by byte, so that they can be wrong, and damage done to good ones."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B"}
_FORMS |= {U64: "Q", I64: "q", F64: "d"}


def count(n: int, version: int = 3) -> bytes:
    return struct.pack("<I" if version == 1 else "<Q", n)


def string(text: str | bytes, version: int = 3) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return count(len(data), version) + data


def value(kind: int, content: Any, version: int = 3) -> bytes:
    """A value; for ARRAY, `content` is (type of the items, items)."""
    if kind == STRING:
        return string(content, version)
    if kind == ARRAY:
        item, items = content
        body = b"".join(value(item, x, version) for x in items)
        return struct.pack("<I", item) + count(len(items), version) + body
    return struct.pack("<" + _FORMS[kind], content)


def pair(key: str | bytes, kind: int, content: Any, version: int = 3) -> bytes:
    return string(key, version) + struct.pack("<I", kind) + value(kind, content, version)


def info(
    name: str | bytes, dims: Sequence[int], type_id: int = 0, offset: int = 0, version: int = 3
) -> bytes:
    sizes = b"".join(count(n, version) for n in dims)
    return (
        string(name, version)
        + struct.pack("<I", len(dims))
        + sizes
        + struct.pack("<IQ", type_id, offset)
    )


def build(
    pairs: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    version: int = 3,
    alignment: int = 32,
    n_tensors: int | None = None,
    n_keys: int | None = None,
) -> bytes:
    """A whole file; counts are true unless given."""
    head = b"GGUF" + struct.pack("<I", version)
    head += count(len(infos) if n_tensors is None else n_tensors, version)
    head += count(len(pairs) if n_keys is None else n_keys, version)
    head += b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data


def sample(version: int) -> bytes:
    """A small file with a value of every type and a few tensors."""
    v = version
    words = [f"word{i}" for i in range(300)] + ["", "ü" * 200, "nul\0inside", "<0x00>"]
    pairs = [
        pair("general.architecture", STRING, "llama", v),
        pair("general.alignment", U32, 32, v),
        *(pair(f"n{kind}", kind, 1, v) for kind in _FORMS),
        *(pair(f"a{kind}", ARRAY, (kind, [1, 0, 1]), v) for kind in _FORMS),
        pair("words", ARRAY, (STRING, words), v),
        pair("none", ARRAY, (STRING, []), v),
        pair("nested", ARRAY, (ARRAY, [(U8, [1, 2]), (STRING, ["a", "b"])]), v),
        pair("llama.block_count", U32, 1, v),
        pair("llama.context_length", U32, 64, v),
        pair("llama.embedding_length", U32, 32, v),
        pair("llama.feed_forward_length", U32, 32, v),
        pair("llama.attention.head_count", U32, 2, v),
        pair("llama.attention.layer_norm_rms_epsilon", F32, 1e-5, v),
        pair("llama.rope.freq_base", F32, 1e4, v),
        pair("tokenizer.ggml.tokens", ARRAY, (STRING, [f"t{i}" for i in range(40)]), v),
    ]
    infos = [
        info("token_embd.weight", [32, 2], 8, 0, v),
        info("output_norm.weight", [5], 0, 96, v),
        info("cube", [4, 3, 2], 1, 128, v),
        info("output.weight", [256, 1], 12, 192, v),
    ]
    return build(pairs, infos, bytes(range(256)) + bytes(80), v)


_TEMPTING = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 31) - 1, (1 << 32) - 1]
_TEMPTING += [1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 8, 1 << 40]


def mutant(good: bytes, seed: int) -> bytes:
    """`good` with one to four wounds; the same for the same seed."""
    rng = random.Random(seed)
    data = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not data:
            break
        at = rng.randrange(len(data))
        # Half of the wounds near the front: that is where counts are.
        if rng.random() < 0.3:
            at = min(at, rng.randrange(64))
        width = rng.choice((1, 2, 4, 8))
        match rng.randrange(8):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2:
                bits = rng.choice(_TEMPTING) & ((1 << 8 * width) - 1)
                data[at : at + width] = bits.to_bytes(width, "little")
            case 3:
                near = int.from_bytes(data[at : at + width], "little") + rng.randrange(-9, 10)
                data[at : at + width] = (near % (1 << 8 * width)).to_bytes(width, "little")
            case 4:
                del data[at:]
            case 5:
                del data[at : at + rng.choice((1, 4, 8, 24))]
            case 6:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 24)))
            case 7:
                other = rng.randrange(len(data))
                data[at:at] = data[other : other + rng.choice((4, 8, 16, 40, 200))]
    return bytes(data)
