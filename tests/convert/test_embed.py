"""A model file that holds its encoders: everything else as it was, and llama.cpp loads it."""

from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest

from kvarn.convert.embed import embed_encoders
from kvarn.runtime.attend import AttendError, Hash
from kvarn.runtime.attend.encoders import Dense, Learned, LearnedLayer
from kvarn.runtime.attend.encoders.sidecar import find_encoders, sidecar_path, write_sidecar
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.system.errors import KvarnError


def encoders_of(model: Model) -> Learned:
    rng, config = np.random.default_rng(3), model.config
    widths = (config.head_dim, 16, 16, 32)

    def dense(n: int) -> tuple[Dense, ...]:
        return tuple(
            Dense(
                rng.standard_normal((n, b, a)).astype(np.float16),
                rng.standard_normal((n, b)).astype(np.float32),
            )
            for a, b in pairwise(widths)
        )

    layers = {
        i: LearnedLayer(dense(config.n_heads), dense(config.n_kv_heads))
        for i, layer in enumerate(config.kv_layers)
        if layer.window is None
    }
    return Learned(32, 16, 1024, model.fingerprint, model.name, layers)


@pytest.fixture
def sidecar(tiny: Model, tmp_path: Path) -> Path:
    path = tmp_path / "encoders.gguf"
    write_sidecar(path, encoders_of(tiny), "llama")
    return path


def test_the_copy_holds_the_encoders_and_the_model(
    tiny: Model, tiny_path: Path, sidecar: Path, tmp_path: Path
) -> None:
    out = tmp_path / "one.gguf"
    embed_encoders(tiny_path, sidecar, out)
    before, after = gguf.GGUFReader(tiny_path), gguf.GGUFReader(out)
    fields = [key for key in before.fields if not key.startswith("GGUF.")]
    for key in fields:
        assert after.fields[key].types == before.fields[key].types
        assert after.fields[key].contents() == before.fields[key].contents()
    added = set(after.fields) - set(before.fields)
    assert len(added) == 7 + 2 and all(key.startswith("kvarn.hash.") for key in added)
    assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
    for a, b in zip(after.tensors, before.tensors):
        assert a.tensor_type == b.tensor_type
        np.testing.assert_array_equal(a.data, b.data)
    model = load(out)
    assert model.fingerprint == tiny.fingerprint
    assert model.encoders.digest == encoders_of(tiny).digest
    assert not model.context(100, Hash()).notices


def test_embedded_encoders_are_replaced_and_a_sidecar_goes_first(
    tiny: Model, tiny_path: Path, sidecar: Path, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    embed_encoders(tiny_path, sidecar, first)
    embed_encoders(first, sidecar, second)
    assert first.read_bytes() == second.read_bytes()
    sidecar_path(first).write_bytes(sidecar.read_bytes()[:-100])
    with pytest.raises(KvarnError, match="cut short"):
        find_encoders(load(first).file)


def test_damaged_strings_are_told(tiny_path: Path, sidecar: Path, tmp_path: Path) -> None:
    out = tmp_path / "one.gguf"
    embed_encoders(tiny_path, sidecar, out)
    whole = out.read_bytes()
    at = whole.index(b"kvarn.hash.blk.1") + 60
    letter = b"A" if whole[at : at + 1] != b"A" else b"B"
    for change, words in ((letter, "digest"), (b"*", "not base64")):
        out.write_bytes(whole[:at] + change + whole[at + 1 :])
        with pytest.raises(AttendError, match=words):
            find_encoders(load(out).file)


def test_files_that_are_read_are_not_overwritten(tiny_path: Path, sidecar: Path) -> None:
    for out in (tiny_path, sidecar):
        with pytest.raises(KvarnError, match="being read"):
            embed_encoders(tiny_path, sidecar, out)


def test_llama_cpp_loads_it_with_the_same_logits(
    tiny_path: Path, sidecar: Path, tmp_path: Path
) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is the oracle")
    embed_encoders(tiny_path, sidecar, tmp_path / "one.gguf")
    logits = []
    for path in (tiny_path, tmp_path / "one.gguf"):
        llama = llama_cpp.Llama(str(path), n_ctx=64, logits_all=True, verbose=False)
        llama.eval([1, 2, 3, 4])
        logits.append(np.array(llama.scores[:4]))
    np.testing.assert_array_equal(*logits)
