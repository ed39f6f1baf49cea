"""Damaged, foreign and shrinking packs: found, told in one line, never a crash or a hang."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvarn.runtime.store import PackError
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.contents import create
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.format import manifest
from kvarn.runtime.store.disk.format.manifest import Manifest
from kvarn.system.errors import KvarnError

from .packs import FACTS, check, fill, fill_column, make, opened, random_tokens, save

TOKENS = random_tokens(2200)
HUGE = asdict(FACTS) | {"n_layers": 1 << 40}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack with two full segments, a column, a tail and two sound superblocks."""
    path = tmp_path_factory.mktemp("packs") / "whole"
    make(path)
    store = opened(path)
    for n in (100, 1500, 2150, 2200):
        start = len(store.saved.tokens)
        fill(store, TOKENS[:n], start)
        fill_column(store, TOKENS[:n])
        save(store, TOKENS[:n])
    store.close()
    assert verify(path) == []
    return path


def flips(folder: Path, n: int, seed: int) -> Iterator[tuple[Path, int, int]]:
    """(file, byte, bit): half of them anywhere, half in the small files."""
    source = random.Random(seed)
    paths = [path for path in sorted(folder.iterdir()) if path.stat().st_size]
    small = [path for path in paths if path.suffix != ".kv"]
    for i in range(n):
        path = source.choice(small if i % 2 else paths)
        yield path, source.randrange(path.stat().st_size), source.randrange(8)


def flip(path: Path, byte: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        old = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([old ^ 1 << bit]))


def found_by_verify(path: Path) -> bool:
    try:
        return bool(verify(path))
    except PackError:
        return True


@pytest.mark.parametrize("n", [400, pytest.param(2_500, marks=pytest.mark.slow)])
def test_every_flipped_bit_is_found_or_not_used(whole: Path, tmp_path: Path, n: int) -> None:
    path = tmp_path / "pack"
    shutil.copytree(whole, path)
    unseen = 0
    for file, byte, bit in flips(path, n, n):
        flip(file, byte, bit)
        found = found_by_verify(path)
        try:
            store = opened(path, writable=False, io="pread")
            if not found:
                # In no byte that the pack uses: all is as it was.
                unseen += 1
                assert store.saved.tokens == TOKENS
                check(store, TOKENS)
            store.close()
        except KvarnError as error:
            assert found
            assert "\n" not in str(error)
            assert str(path) in str(error)
        flip(file, byte, bit)
    assert unseen < n // 2
    assert verify(path) == []


@pytest.mark.parametrize("name", ["pack.json", "commits", "tokens", "layer-000.kv", "layer-001.kv"])
@pytest.mark.parametrize("kept", [0.0, 0.3, None])
@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_cut_and_missing_files_are_told(
    whole: Path, tmp_path: Path, name: str, kept: float | None, io: str
) -> None:
    path = tmp_path / "pack"
    shutil.copytree(whole, path)
    if name == "commits" and kept:
        name = "tokens"  # half of `commits` is one superblock, see below
    if kept is None:
        (path / name).unlink()
    else:
        os.truncate(path / name, int(kept * (path / name).stat().st_size))
    with pytest.raises(PackError) as caught:
        opened(path, writable=False, io=io)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert found_by_verify(path)


def test_one_superblock_is_enough_to_open_and_verify_misses_the_other(
    whole: Path, tmp_path: Path
) -> None:
    path = tmp_path / "pack"
    shutil.copytree(whole, path)
    os.truncate(path / "commits", len(PackFolder(path).superblocks()[0]))
    assert opened(path, writable=False).saved.tokens in (TOKENS, TOKENS[:2150])
    assert verify(path) == [f"pack {path}: commits is damaged in slot 1"]


def test_a_damaged_last_commit_gives_the_one_before(whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "pack"
    shutil.copytree(whole, path)
    folder = PackFolder(path)
    newest = folder.commits()[0][0].sequence
    size = len(folder.superblocks()[0])
    flip(path / "commits", newest % 2 * size + 40, 3)
    for writable in (False, True):
        store = opened(path, writable)
        assert store.saved.tokens == TOKENS[:2150]
        check(store, TOKENS[:2150])
        if not writable:
            store.close()
    fill(store, TOKENS, 2150)
    save(store, TOKENS)
    store.close()
    assert verify(path) == []
    check(opened(path), TOKENS)


@pytest.mark.parametrize("fill_byte", [0, 255])
def test_files_of_one_byte_value_are_told(whole: Path, tmp_path: Path, fill_byte: int) -> None:
    for name in ("pack.json", "commits", "tokens"):
        path = tmp_path / name
        shutil.copytree(whole, path)
        (path / name).write_bytes(bytes([fill_byte]) * (path / name).stat().st_size)
        with pytest.raises(PackError):
            opened(path)


def test_other_folders_and_files_are_no_packs(tmp_path: Path) -> None:
    with pytest.raises(PackError, match="no such folder"):
        PackFolder(tmp_path / "none")
    with pytest.raises(PackError, match=r"no pack\.json in it"):
        PackFolder(tmp_path)
    (tmp_path / "letter.txt").write_text("Dear reader")
    with pytest.raises(PackError, match=r"cannot make a pack in this folder: it holds letter\.txt"):
        make(tmp_path)
    pipe = tmp_path / "pipe"
    make(pipe)
    (pipe / "commits").unlink()
    os.mkfifo(pipe / "commits")
    with pytest.raises(OSError, match="not a regular file"):
        opened(pipe, writable=False)


@pytest.mark.parametrize("form", range(1, 10))
def test_formats_of_development_versions_are_read_alike(pack: Path, form: int) -> None:
    data = json.loads((pack / "pack.json").read_text())
    data["check"] = manifest._check(data | {"format": form})
    (pack / "pack.json").write_text(json.dumps(data | {"format": form}))
    assert PackFolder(pack).manifest.id == data["id"]


def test_a_newer_format_is_named_with_ours(pack: Path) -> None:
    data = json.loads((pack / "pack.json").read_text())
    (pack / "pack.json").write_text(json.dumps(data | {"format": 11}))
    with pytest.raises(PackError, match="it has format 11, this kvarn reads formats up to 10"):
        PackFolder(pack)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "x"}},
        {"model": HUGE},
        {"kv": {"k": "f64", "v": "f16", "segment": 1024}},
        {"parent": 7},
        {"goal": -1},
        {"goal": "many"},
    ],
)
def test_a_manifest_of_sound_sum_and_wrong_content_is_told(
    pack: Path, change: dict[str, object]
) -> None:
    from kvarn.runtime.store.disk.format.manifest import _check

    data = json.loads((pack / "pack.json").read_text()) | change
    data["check"] = _check(data)
    (pack / "pack.json").write_text(json.dumps(data))
    with pytest.raises(PackError, match="not one that kvarn writes"):
        PackFolder(pack)


def test_a_file_cut_under_a_reader_that_reads_is_told(whole: Path, tmp_path: Path) -> None:
    """With `pread`, what is in memory stays good, and what is not is refused."""
    path = tmp_path / "pack"
    shutil.copytree(whole, path)
    store = opened(path, writable=False, io="pread")
    os.truncate(path / "layer-000.kv", 100)
    check(store, TOKENS)
    with pytest.raises(PackError, match=r"layer-000\.kv is cut short"):
        opened(path, writable=False, io="pread")


def test_a_parent_that_is_gone_or_another_is_told(whole: Path, tmp_path: Path) -> None:
    from kvarn.runtime.store.disk.parents import shared_segments

    above = tmp_path / "above"
    shutil.copytree(whole, above)
    folder = PackFolder(above)
    inherited = shared_segments(folder, folder.state())
    assert inherited is not None
    child = tmp_path / "child"
    create(child, Manifest(FACTS, "f16", "f16", False, inherited))
    assert opened(child).saved.tokens == TOKENS[:2048]
    other = tmp_path / "other"
    create(other, Manifest(FACTS, "f16", "f16", False, replace(inherited, id="else")))
    with pytest.raises(PackError, match=f"its parent {above} is pack .*, expected else"):
        opened(other)
    shutil.rmtree(above)
    with pytest.raises(PackError, match=r"its parent cannot be opened: .*no such folder"):
        opened(child)
