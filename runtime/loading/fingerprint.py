"""Digests that tell models and tokenizers apart, computed without reading gigabytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

if TYPE_CHECKING:
    from ..gguf import GGUFFile

_ITEMS = 1 << 16  # of an array, written at a time
_SAMPLE = 256  # bytes, from the start, the middle and the end of each tensor


def fingerprint(file: GGUFFile) -> str:
    """A digest, 16 hexadecimal digits, of the architecture's keys, the tensors' shapes and types,
    and 768 bytes of each tensor. Copies, split files and renamed ones have the same digest."""
    state = hashlib.blake2b(file.architecture.encode(), digest_size=8)
    for key in sorted(key for key in file.metadata if key.startswith(f"{file.architecture}.")):
        state.update(f"{key} ".encode())
        for part in _representation(file.metadata[key]):
            state.update(part.encode())
        state.update(b"\n")
    for name in sorted(file.tensors):
        tensor = file.tensors[name]
        state.update(f"{name} {tensor.type.name} {tensor.shape}\n".encode())
        view, start, n = tensor.source.view, tensor.offset, tensor.n_bytes
        for first in (0, max(0, n // 2 - _SAMPLE), max(0, n - _SAMPLE)):
            state.update(view[start + first : start + min(n, first + _SAMPLE)])
    return state.hexdigest()


def tokenizer_digest(file: GGUFFile) -> str:
    """A digest, 16 hexadecimal digits, of the `tokenizer.*` keys except chat templates, as stored.
    Reads them all, some 10 MB for 128,000 tokens. Detects another tokenizer, but no forgery."""
    state = xxhash.xxh3_64()
    for key in sorted(file.metadata):
        if key.startswith("tokenizer.") and not key.startswith("tokenizer.chat_template"):
            entry = file.metadata.entry(key)
            state.update(f"{key} {entry.type_name} {entry.end - entry.start}\n".encode())
            state.update(file.metadata.view(entry))
    return state.hexdigest()


def _representation(value: Any) -> Iterator[str]:
    """`repr` of a value, piece by piece; arrays of numbers as lists."""
    if not isinstance(value, (list, np.ndarray)):
        yield repr(value)
        return
    yield "["
    for first in range(0, len(value), _ITEMS):
        items = value[first : first + _ITEMS]
        text = repr(items.tolist() if isinstance(items, np.ndarray) else items)
        yield f"{', ' if first else ''}{text[1:-1]}"
    yield "]"
