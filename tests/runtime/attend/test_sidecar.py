"""Sidecars: what is written is read, attended with by the paper's formula, or refused in words."""

import re
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

import kvarn
from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import nearest_reference
from kvarn.runtime.attend import Attend, AttendError, BoundAttend, Hash
from kvarn.runtime.attend.encoders import sidecar
from kvarn.runtime.attend.encoders.sidecar import (
    find_encoders,
    read_sidecar,
    sidecar_path,
    write_sidecar,
)
from kvarn.runtime.attend.hash import ASKED, NOTICE
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.gguf import GGUFError, open_gguf
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.prefill.sparse import SparsePrefill
from lab.peers.model import Shape, write_model

from ..reading import SHAPE
from .hash_files import HIDDEN, random_encoders, signatures

N = 600


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_model(tmp_path / "tiny.gguf", "f16", SHAPE)
    return tmp_path / "tiny.gguf"


def put_beside(path: Path, bits: int = 32, seed: int = 0, hidden: int = HIDDEN) -> Path:
    model, beside = load(path), sidecar_path(path)
    write_sidecar(beside, random_encoders(model, bits, seed, hidden), "llama")
    return beside


class Seen(Attend, BoundAttend):
    """Keeps the keys, the last query and the lists of each layer of another method."""

    def __init__(self, method: Hash) -> None:
        self.method, self.calls = method, {}

    def open(self, model, store, n_ctx):
        self.inner = self.method.open(model, store, n_ctx)
        self.notices = self.inner.notices
        return self

    def appended(self, layer, start, n_tokens) -> None:
        self.inner.appended(layer, start, n_tokens)

    def __call__(self, layer, q, start, out) -> None:
        self.inner(layer, q, start, out)
        store, stop = layer.store, start + len(q)
        keys, _ = read_kv(store.segments(layer.index), store.layout, 2, 0, stop)
        lists = [x[:n].copy() for x, n in zip(self.inner._chosen.lists, self.inner._chosen.counts)]
        self.calls[layer.index] = q[0].copy(), keys, lists


def attended(model: Model, method: Hash) -> Seen:
    seen = Seen(method)
    context = model.context(N, seen)
    ids = np.random.default_rng(0).integers(0, 512, N).tolist()
    context.prefill(ids[:-1])
    context.decode(ids[-1])
    return seen


@pytest.mark.parametrize(("bits", "hidden"), [(32, HIDDEN), (64, HIDDEN), (32, 0), (64, 0)])
def test_what_is_attended_is_the_papers_formula(path: Path, bits: int, hidden: int) -> None:
    """Each query head and each KV head with networks of its own, from the file beside the model."""
    put_beside(path, bits, hidden=hidden)
    model = load(path)
    seen = attended(model, Hash(budget=40, sink=4, window=16))
    assert not seen.notices
    for index, (q, keys, lists) in seen.calls.items():
        learned = random_encoders(model, bits, hidden=hidden).layers[index]
        stored = np.stack([signatures(learned.k, j, keys[:, j]) for j in range(2)])
        asked = np.stack([signatures(learned.q, h, q[h : h + 1]) for h in range(4)])
        want = nearest_reference(asked.reshape(2, 2), stored, bits, (4, N - 16, N), 20, SEED)
        for got, expected in zip(lists, want):
            np.testing.assert_array_equal(got, expected)


def test_without_a_sidecar_or_where_asked_signatures_are_simhash(path: Path) -> None:
    plain = attended(load(path), Hash(budget=40, sink=4, window=16))
    assert plain.notices == (NOTICE,)
    put_beside(path)
    forced = attended(load(path), Hash(budget=40, sink=4, window=16, encoders="simhash"))
    assert forced.notices == (ASKED,)
    other = attended(load(path), Hash(budget=40, sink=4, window=16))
    for index in (0, 1):
        for a, b in zip(plain.calls[index][2], forced.calls[index][2]):
            np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(plain.calls[0][2], other.calls[0][2]))


def test_a_file_can_be_named(path: Path, tmp_path: Path) -> None:
    beside = put_beside(path, seed=1)
    elsewhere = shutil.move(beside, tmp_path / "other.gguf")
    model = load(path)
    assert find_encoders(model.file) is None
    encoder = kvarn.Hash(encoders=elsewhere).encoder(model.info)
    assert encoder.digest == random_encoders(model, seed=1).digest


def test_what_ships_with_kvarn_is_taken_by_the_models_fingerprint(
    path: Path, tmp_path: Path, monkeypatch
) -> None:
    """Also for a copy of another name; what stands beside the model comes first, and only that
    makes sparse prefill choose by signatures unasked."""
    model = load(path)
    monkeypatch.setattr(sidecar, "PUBLISHED", tmp_path)
    shipped = random_encoders(model, 64, seed=2, hidden=0)
    write_sidecar(tmp_path / f"{model.fingerprint}.hash.gguf", shipped, "llama")
    copy = Path(shutil.copy(path, tmp_path / "copy.gguf"))
    assert find_encoders(load(copy).file).digest == shipped.digest
    assert SparsePrefill().resolved(load(copy).info).index == "sketch"
    beside = put_beside(copy, seed=3)
    assert find_encoders(load(copy).file).digest == read_sidecar(beside, model.file).digest
    assert SparsePrefill().resolved(load(copy).info).index == "hash"
    write_model(tmp_path / "other.gguf", "f16", Shape(2, 64, 4, 2, 16, 96, 512))
    assert find_encoders(load(tmp_path / "other.gguf").file) is None


def test_each_sidecar_that_ships_is_small_and_has_the_name_of_its_model() -> None:
    for path in sidecar.PUBLISHED.glob("*"):
        assert path.stat().st_size < 3 << 20
        with open_gguf(path) as file:
            said = sidecar.Description.of(file)
        assert said is not None and path.name == f"{said.fingerprint}.hash.gguf"


def test_an_older_kvarn_reads_what_it_can(path: Path) -> None:
    """Version 1, where there are hidden layers; linear encoders it refuses by their version."""
    for hidden, version in ((HIDDEN, 1), (0, 2)):
        with open_gguf(put_beside(path, hidden=hidden)) as file:
            assert file.get("kvarn.hash.version", int) == version


def test_gguf_py_reads_what_is_written(path: Path) -> None:
    learned = random_encoders(load(path))
    reader = gguf.GGUFReader(put_beside(path))
    assert reader.get_field("general.type").contents() == "adapter"
    assert reader.get_field("kvarn.hash.bits").contents() == 32
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 2 * 2 * 3 * 2
    for number, layer in learned.layers.items():
        for side, dense in (("q", layer.q), ("k", layer.k)):
            for i, one in enumerate(dense):
                name = f"blk.{number}.hash_{side}.{i}"
                np.testing.assert_array_equal(tensors[f"{name}.weight"].data, one.weight)
                np.testing.assert_array_equal(tensors[f"{name}.bias"].data, one.bias)


def test_signatures_of_other_encoders_are_not_taken_for_these(path: Path, tmp_path: Path) -> None:
    """A pack keeps a column for each."""
    names = {random_encoders(load(path), bits, seed).name for bits in (32, 64) for seed in (0, 1)}
    assert len(names) == 4
    ids = list(range(500))
    for _ in range(2):
        put_beside(path, seed=_)
        with load(path).context(store=kvarn.Disk(tmp_path / "pack"), attend=Hash(budget=8)) as c:
            if not c.tokens:
                c.prefill(ids)
            c.decode(7)
            assert c.stats.layers[0].steps == 1


def test_another_models_encoders_are_refused_with_both_sides_named(path: Path) -> None:
    beside = put_beside(path)
    other = path.with_name("other.gguf")
    write_model(other, "f16", Shape(2, 64, 4, 2, 16, 96, 512))
    found = {load(file).fingerprint for file in (path, other)}
    shutil.move(beside, sidecar_path(other))
    with pytest.raises(AttendError) as error:
        load(other).context(100, Hash())
    assert found <= set(re.findall(r"\b[0-9a-f]{16}\b", str(error.value)))
    assert "'random f16'" in str(error.value) and "other.gguf" in str(error.value)


def test_other_bits_are_refused(path: Path) -> None:
    put_beside(path, 64)
    model = load(path)
    assert model.context(100, Hash(bits=64)) and model.context(100, Hash())
    with pytest.raises(AttendError, match=r"have 64 bits and bits 32 was asked for.*use encoders"):
        model.context(100, Hash(bits=32))


def test_damage_is_told_and_never_simhash(path: Path) -> None:
    beside = put_beside(path)
    whole = beside.read_bytes()
    for at in (len(whole) - 5, len(whole) // 2):
        beside.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(
            AttendError, match=r"digest of the hash encoders: found [0-9a-f]{16} of"
        ):
            load(path).context(100, Hash())
    beside.write_bytes(whole[:-1000])
    with pytest.raises(GGUFError, match="cut short"):
        load(path).context(100, Hash())
    beside.write_bytes(whole.replace(b"blk.1.hash_k.2.bias", b"blk.7.hash_k.2.bias"))
    with pytest.raises(
        AttendError, match=r"blk\.1\.hash_k\.2\.bias .*no such tensor.*F32 \(2, 32\)"
    ):
        load(path).context(100, Hash())
    shutil.copy(path, beside)
    with pytest.raises(AttendError, match="without hash encoders"):
        load(path).context(100, Hash())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("version", 3, "version .*found 3, expected 1 or 2: a newer kvarn"),
        ("hidden", 0, "hidden .*found 0, expected a multiple of 16"),
        ("bits", 128, "bits .*found 128, expected 32 or 64"),
        ("hidden", 40, "hidden .*found 40, expected a multiple of 16"),
        ("hidden", 48, r"hash_q\.0\.weight .*found F16 \(4, 32, 32\), expected F16 \(4, 48, 32\)"),
    ],
)
def test_what_it_says_of_itself_is_checked(path: Path, key: str, value: int, words: str) -> None:
    beside = put_beside(path)
    reader = gguf.GGUFReader(beside, "r+")
    reader.fields[f"kvarn.hash.{key}"].parts[-1][0] = value
    reader.data.flush()
    with pytest.raises(AttendError, match=words):
        read_sidecar(beside, load(path).file)


def test_names() -> None:
    assert sidecar_path(Path("a/model.gguf")) == Path("a/model.hash.gguf")
    assert sidecar_path(Path("m-00001-of-00012.gguf")) == Path("m.hash.gguf")
    assert sidecar_path(Path("m-q4_0.v2.gguf")) == Path("m-q4_0.v2.hash.gguf")
