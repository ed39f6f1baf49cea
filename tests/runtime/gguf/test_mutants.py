"""Damaged files: nothing but GGUFError, little time, little memory."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest

from kvarn.runtime.gguf import GGUFError, open_gguf

from . import gguf_bytes

# Of a file of some 10 KB; the bounds that users are promised are 1 s and 200 MB.
MAX_SECONDS = 1.0
MAX_BYTES = 16 << 20
PER_BATCH = 500


def read_all(path: Path) -> None:
    """Open a file and look at everything in it."""
    with open_gguf(path) as file:
        assert file.version in (1, 2, 3)
        for key in file.metadata:
            file.metadata.first(key, 3) if file.metadata.entry(key).item else None
            file.metadata[key]
        for tensor in file.tensors.values():
            assert tensor.data.nbytes == tensor.n_bytes
            tensor.data.sum()
        assert file.n_parameters >= 0
        assert isinstance(file.architecture, str)


def check_batch(path: Path, batch: int) -> int:
    """Try PER_BATCH mutants; returns how many were refused."""
    good = [gguf_bytes.sample(version) for version in (1, 2, 3)]
    refused = 0
    tracemalloc.start()
    try:
        for i in range(batch * PER_BATCH, (batch + 1) * PER_BATCH):
            path.write_bytes(gguf_bytes.mutant(good[i % 3], i))
            tracemalloc.reset_peak()
            before, start = tracemalloc.get_traced_memory()[0], time.process_time()
            try:
                read_all(path)
            except GGUFError as error:
                refused += 1
                assert str(error).isprintable(), i
            assert time.process_time() - start < MAX_SECONDS, i
            assert tracemalloc.get_traced_memory()[1] - before < MAX_BYTES, i
    finally:
        tracemalloc.stop()
    return refused


@pytest.mark.parametrize("batch", range(4))
def test_mutants(tmp_path: Path, batch: int) -> None:
    refused = check_batch(tmp_path / "mutant.gguf", batch)
    # Some wounds are harmless (a changed weight); most must be noticed, or the test tests nothing.
    assert PER_BATCH // 3 < refused <= PER_BATCH


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4, 44))
def test_more_mutants(tmp_path: Path, batch: int) -> None:
    assert check_batch(tmp_path / "mutant.gguf", batch) > PER_BATCH // 3
