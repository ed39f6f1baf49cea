"""Packs know the tokenizer that made their tokens."""

import struct
from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.gguf import GGUFFile
from kvarn.runtime.loading.fingerprint import tokenizer_digest
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk, PackError
from kvarn.runtime.store.disk.format.manifest import Manifest


@pytest.fixture
def pack(tiny: Model, tmp_path: Path) -> Path:
    with tiny.context(64, store=Disk(tmp_path / "pack")) as context:
        context.prefill([1, 2, 3])
    return tmp_path / "pack"


def changed(tiny_path: Path, tmp_path: Path) -> Path:
    """The model with two tokens' texts exchanged: same weights, another tokenizer."""
    file = GGUFFile(tiny_path)
    entry = file.metadata.entry("tokenizer.ggml.tokens")
    assert entry.starts is not None
    texts = file.metadata["tokenizer.ggml.tokens"]
    first, second = next(
        (i, i + 1) for i in range(20, 500) if len(texts[i].encode()) == len(texts[i + 1].encode())
    )
    data = bytearray(tiny_path.read_bytes())
    places = [int(entry.starts[i]) for i in (first, second)]
    n = 8 + struct.unpack_from("<Q", data, places[0])[0]
    one, two = (bytes(data[at : at + n]) for at in places)
    data[places[0] : places[0] + n], data[places[1] : places[1] + n] = two, one
    (tmp_path / "other.gguf").write_bytes(data)
    return tmp_path / "other.gguf"


def test_a_pack_refuses_another_tokenizer(
    tiny: Model, tiny_path: Path, tmp_path: Path, pack: Path
) -> None:
    other = kvarn.load(changed(tiny_path, tmp_path))
    assert other.fingerprint == tiny.fingerprint
    assert (
        Manifest.read(pack).model.tokenizer
        == tiny.info.tokenizer_digest
        != other.info.tokenizer_digest
    )
    for disk in (Disk(pack), Disk(pack, read_only=True), Disk(tmp_path / "child", parent=pack)):
        with pytest.raises(PackError, match="another tokenizer") as caught:
            other.context(64, store=disk)
        assert other.info.tokenizer_digest in str(caught.value)
    assert not (tmp_path / "child").exists()


def test_the_digest_is_of_the_tokenizer_and_nothing_else(tiny_path: Path, tmp_path: Path) -> None:
    file = GGUFFile(tiny_path)
    before = tokenizer_digest(file)
    for key in file.metadata:
        entry = file.metadata.entry(key)
        data = bytearray(tiny_path.read_bytes())
        data[entry.end - 1] ^= 1
        (tmp_path / "changed.gguf").write_bytes(data)
        try:
            after = tokenizer_digest(GGUFFile(tmp_path / "changed.gguf"))
        except kvarn.KvarnError:
            continue  # no model any more
        ours = key.startswith("tokenizer.") and not key.startswith("tokenizer.chat_template")
        assert (after != before) == ours, key
