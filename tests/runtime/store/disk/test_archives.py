"""Imports: all that export writes, nothing else; whatever is refused leaves nothing."""

import hashlib
import io
import os
import random
import resource
import tarfile
import time
from pathlib import Path

import pytest

from kvarn.runtime.store import PackError
from kvarn.runtime.store.disk.archive import clear_imports, export_pack, import_pack, unpack
from kvarn.runtime.store.disk.contents import take_lock
from kvarn.system.files import FileRefused

from .archives import KINDS, header, joined, members_of, numbered, starts
from .packs import MIXED, WINDOWS, holds, make, random_tokens, write

TOKENS = random_tokens(2600)
EACH = 7  # of every kind


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two full segments, the beginning of a third, and a column."""
    folder = tmp_path_factory.mktemp("exported")
    make(folder / "pack")
    write(folder / "pack", TOKENS)
    export_pack(folder / "pack", folder / "archive")
    return folder / "archive"


def listing(folder: Path) -> dict[str, str]:
    """Every path below a folder, and a digest of what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
    }


def refused(data: bytes, folder: Path) -> PackError | None:
    """Import `data` in `folder`/home: the error, with nothing left and in two seconds of CPU."""
    source, home = folder / "source", folder / "home"
    source.write_bytes(data)
    before, began = listing(folder), time.process_time()
    try:
        import_pack(source, home / "packs" / "pack")
    except PackError as error:
        assert time.process_time() - began < 2
        assert "\n" not in str(error)
        assert str(source) in str(error)
        assert listing(folder) == before
        return error
    return None


def hostile(exported: Path, folder: Path, numbers: range) -> None:
    data = exported.read_bytes()
    for number in numbers:
        kind = KINDS[number % len(KINDS)]
        changed = kind(data, random.Random(number))
        if refused(changed, folder) is not None:
            continue
        # A bit of a mode or a time: it is the same pack.
        assert kind.__name__ in ("flipped", "other_type", "other_order", "other_size", "other_name")
        assert [c for _, c in members_of(changed)] == [c for _, c in members_of(data)]
        assert holds(folder / "home" / "packs" / "pack", TOKENS)
        for path in (folder / "home" / "packs" / "pack").iterdir():
            path.unlink()
        for path in ("home/packs/pack", "home/packs", "home"):
            (folder / path).rmdir()


def test_hostile_archives_are_refused_and_leave_nothing(exported: Path, tmp_path: Path) -> None:
    hostile(exported, tmp_path, range(len(KINDS)))


@pytest.mark.parametrize("windows", [WINDOWS, (100, 1500), MIXED])
def test_hostile_archives_of_layers_with_windows(tmp_path: Path, windows: tuple[int, ...]) -> None:
    make(tmp_path / "pack", windows=windows)
    write(tmp_path / "pack", TOKENS)
    export_pack(tmp_path / "pack", tmp_path / "archive")
    names = [entry.name for entry, _ in members_of((tmp_path / "archive").read_bytes())]
    assert names[:5] == ["pack.json", "commits", "tokens", "tail-1", "checkpoints"]
    hostile(tmp_path / "archive", tmp_path, range(len(KINDS)))


@pytest.mark.slow
def test_many_hostile_archives(exported: Path, tmp_path: Path) -> None:
    hostile(exported, tmp_path, range(len(KINDS), EACH * 2 * len(KINDS)))


@pytest.mark.parametrize("n", [8**11, 8**11 + 1, 1 << 40, 10**18])
def test_sizes_beyond_a_header_are_read_as_they_are_written(tmp_path: Path, n: int) -> None:
    """The two blocks that tarfile puts before a large member, without the member."""
    entry = tarfile.TarInfo("layer-000.kv")
    entry.size, entry.mode = n, 0o644
    data = entry.tobuf(tarfile.PAX_FORMAT)
    assert len(data) == 3 * 512
    (tmp_path / "archive").write_bytes(data)
    os.truncate(tmp_path / "archive", min(n, 1 << 42) + len(data))  # holes: no disk space
    fd = os.open(tmp_path / "archive", os.O_RDONLY)
    try:
        archive = unpack._Archive(fd, tmp_path / "archive", None)
        if n <= 1 << 42:
            assert archive.header("layer-000.kv", n, n) == n
        else:
            with pytest.raises(PackError, match="left of it"):
                archive.header("layer-000.kv", n, n)
    finally:
        os.close(fd)


def test_a_size_is_not_said_twice(tmp_path: Path) -> None:
    """A pax size goes with a header whose own is 0, and base 256 is none that export writes."""
    entry = tarfile.TarInfo("layer-000.kv")
    entry.size = 8**11
    data = entry.tobuf(tarfile.PAX_FORMAT)
    plain = bytearray(tarfile.TarInfo("layer-000.kv").tobuf())
    for changed in (
        header(bytearray(data), 1024, {124: numbered(5)}),
        data[:1024] + data,
        header(plain, 0, {124: numbered(-1)}),
    ):
        (tmp_path / "archive").write_bytes(changed + bytes(10_240))
        fd = os.open(tmp_path / "archive", os.O_RDONLY)
        try:
            with pytest.raises(PackError, match="not an exported context pack"):
                unpack._Archive(fd, tmp_path, None).header("layer-000.kv", 0, 1 << 62)
        finally:
            os.close(fd)


def test_what_is_exported_is_what_the_reader_draws(exported: Path) -> None:
    data = exported.read_bytes()
    assert len(data) % tarfile.RECORDSIZE == 0
    assert [entry.name for entry, _ in members_of(data)] == [
        "pack.json", "commits", "tokens", "tail-1", "layer-000.kv", "layer-001.kv",
        "index-signatures",
    ]  # fmt: skip
    assert starts(data)[0] == 0


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_exports_refuse_what_is_no_file(exported: Path, tmp_path: Path, kind: str) -> None:
    pack, target, other = exported.parent / "pack", tmp_path / "out", tmp_path / "other"
    other.write_text("mine")
    {
        "link": lambda: target.symlink_to(other),
        "pipe": lambda: os.mkfifo(target),
        "folder": target.mkdir,
    }[kind]()
    before = sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir())
    with pytest.raises(FileRefused, match="expected the name of a regular file"):
        export_pack(pack, target)
    assert sorted((path.name, path.lstat().st_mode) for path in tmp_path.iterdir()) == before
    assert other.read_text() == "mine"


def test_exports_leave_what_stands_at_their_old_names(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "a.part").write_text("mine, too")
    (tmp_path / "b.part").symlink_to(tmp_path / "mine")
    for name in "ab":
        export_pack(exported.parent / "pack", tmp_path / name)
    assert (tmp_path / "a.part").read_text() == "mine, too"
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(FileRefused):
        export_pack(exported.parent / "pack", Path())


def test_an_import_to_a_full_disk_names_the_pack_and_leaves_nothing(
    exported: Path, tmp_path: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            import_pack(exported, tmp_path / "packs" / "pack")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.filename == str(tmp_path / "packs" / "pack")
    assert listing(tmp_path) == {}


def test_imports_do_not_wait_for_a_pipe(exported: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        import_pack(tmp_path / "pipe", tmp_path / "packs" / "pack")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def left_by_an_import(folder: Path, name: str = ".importing-0123456789abcdef") -> Path:
    path = folder / name
    path.mkdir()
    for file in ("pack.json", "commits", "lock"):
        (path / file).write_bytes(b"")
    return path


def test_what_an_import_left_is_removed(tmp_path: Path) -> None:
    left_by_an_import(tmp_path)
    (tmp_path / ".importing-0000000000000000").mkdir()  # killed before it had a lock
    clear_imports(tmp_path)
    assert list(tmp_path.iterdir()) == []


def strangers(folder: Path) -> list[Path]:
    """Folders that look almost as if an import had left them."""
    named = [
        left_by_an_import(folder, name)
        for name in (
            ".importing-",
            ".importing-mine",
            ".importing-0123456789ABCDEF",
            ".importing-x.y",
        )
    ]
    kept = [left_by_an_import(folder, f".importing-{i:016x}") for i in range(5)]
    (kept[0] / "letter.txt").write_text("Dear reader")
    (kept[1] / "tokens").mkdir()
    (kept[2] / "tokens").symlink_to(folder)
    (kept[3] / "lock").unlink()
    os.mkfifo(kept[4] / "tokens")
    (folder / "target").mkdir()
    (folder / ".importing-00000000000000ff").symlink_to(folder / "target")
    return [*named, *kept]


def test_what_no_import_left_stays(tmp_path: Path) -> None:
    strangers(tmp_path)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    clear_imports(tmp_path)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_an_import_at_work_stays(tmp_path: Path) -> None:
    path = left_by_an_import(tmp_path)
    lock = take_lock(path)
    clear_imports(tmp_path)
    assert path.exists()
    os.close(lock)
    clear_imports(tmp_path)
    assert not path.exists()


def test_another_users_import_stays(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("giving a folder to another user needs root")
    path = left_by_an_import(tmp_path)
    os.chown(path, 65534, 65534)
    clear_imports(tmp_path)
    assert path.exists()


def test_archives_are_made_by_members(exported: Path) -> None:
    """The generator's own reading and writing changes nothing."""
    data = exported.read_bytes()
    again = joined(members_of(data))
    assert [(e.name, c) for e, c in members_of(again)] == [(e.name, c) for e, c in members_of(data)]
    assert io.BytesIO(again).getvalue() == data
