"""Split files: any shard finds the others; what does not fit together is refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from kvarn.runtime.gguf import GGUFError, open_gguf

from ...models.tiny_models import finish
from .gguf_bytes import STRING, U16, U32, build, info, pair


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Three shards of gguf-py's, with seven tensors."""
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=3)
    writer.add_uint32("llama.block_count", 2)
    for i in range(7):
        writer.add_tensor(f"t{i}", np.full((2, i + 1), i, np.float32))
    finish(writer)
    paths = sorted(tmp_path.glob("model-*.gguf"))
    assert [path.name for path in paths] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return paths


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_shard_opens_all(shards: list[Path], opened: int) -> None:
    with open_gguf(shards[opened]) as file:
        assert file.paths == tuple(shards)
        assert file.architecture == "llama"
        assert file.get("llama.block_count", int) == 2
        assert list(file.tensors) == [f"t{i}" for i in range(7)]
        for i in range(7):
            assert (file.tensors[f"t{i}"].data.view("<f4") == np.full((2, i + 1), i)).all()
        assert file.n_bytes == sum(path.stat().st_size for path in shards)


def test_names_in_capitals_are_found(shards: list[Path]) -> None:
    capitals = [path.rename(path.with_suffix(".GGUF")) for path in shards]
    with open_gguf(capitals[1]) as file:
        assert file.paths == tuple(capitals)


def test_links_keep_their_folder(shards: list[Path], tmp_path: Path) -> None:
    # As in the cache of huggingface_hub: names are links to files called after their hashes.
    blobs, names = tmp_path / "blobs", tmp_path / "names"
    blobs.mkdir()
    names.mkdir()
    for i, path in enumerate(shards):
        path.rename(blobs / f"hash{i}")
        (names / path.name).symlink_to(blobs / f"hash{i}")
    with open_gguf(names / shards[0].name) as file:
        assert len(file.tensors) == 7


def test_a_missing_shard_is_named(shards: list[Path]) -> None:
    shards[1].unlink()
    for path in (shards[0], shards[2]):
        with pytest.raises(GGUFError, match=r"found 2 of 3, without model-00002-of-00003\.gguf"):
            open_gguf(path)


def test_a_renamed_shard_is_refused(shards: list[Path], tmp_path: Path) -> None:
    moved = shards[0].rename(tmp_path / "other.gguf")
    with pytest.raises(GGUFError, match=r"name.*'other\.gguf'.*NAME-00001-of-00003\.gguf"):
        open_gguf(moved)


def test_shards_in_wrong_places_are_refused(shards: list[Path], tmp_path: Path) -> None:
    shards[1].rename(tmp_path / "aside")
    shards[2].rename(shards[1])
    (tmp_path / "aside").rename(shards[2])
    with pytest.raises(GGUFError, match=r"split\.no.*found shard 3 of 3, expected shard 2 of 3"):
        open_gguf(shards[0])


def shard(path: Path, number: int, tensor: str, total: int) -> Path:
    pairs = [pair("split.no", U16, number), pair("split.count", U16, 2)]
    pairs += [
        pair("split.tensors.count", U32, total),
        pair("general.architecture", STRING, "llama"),
    ]
    whole = path / f"m-0000{number + 1}-of-00002.gguf"
    whole.write_bytes(build(pairs, [info(tensor, [1])], bytes(4)))
    return whole


def test_shards_that_do_not_add_up(tmp_path: Path) -> None:
    first = shard(tmp_path, 0, "a", 2)
    shard(tmp_path, 1, "a", 2)
    with pytest.raises(GGUFError, match=r"tensor 'a'.*the name also in m-00001-of-00002\.gguf"):
        open_gguf(first)
    shard(tmp_path, 1, "b", 2)
    open_gguf(first).close()
    shard(tmp_path, 0, "a", 5)
    with pytest.raises(GGUFError, match=r"split\.tensors\.count.*found 2 tensors in 2 shards.* 5"):
        open_gguf(first)
