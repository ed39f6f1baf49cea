"""Nothing is read that somebody else can have written, whoever renames what meanwhile.

The tests with a second user need root. What a folder's owner may do has no other oracle than the
kernel: the second user is a process of its own that tries.
"""

import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kvarn.system.trust import Untrusted, open_folder

OTHER = 54_321  # a user and a group that nobody is
GOOD, EVIL = b"mine", b"theirs"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make what others own")


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder of one's own in one that everybody can reach, /tmp being root's and sticky."""
    folder = Path(tempfile.mkdtemp(dir="/tmp")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def made(folder: Path, content: bytes = GOOD) -> Path:
    """A folder with a file, both of which nobody else can write to."""
    folder.mkdir(parents=True, mode=0o755)
    (folder / "file").write_bytes(content)
    (folder / "file").chmod(0o644)
    return folder


def foreign(folder: Path) -> Path:
    """The same, of another user."""
    made(folder, EVIL)
    os.chown(folder, OTHER, OTHER)
    os.chown(folder / "file", OTHER, OTHER)
    return folder


def read(folder: Path, name: str = "file") -> bytes:
    with open_folder(folder) as opened:
        return opened.read(name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def refusal(folder: Path, name: str = "file") -> Untrusted:
    with pytest.raises(Untrusted) as refused:
        read(folder, name)
    assert "\n" not in str(refused.value)
    return refused.value


def n_open() -> int:
    """Descriptors of this process."""
    return sum(_is_open(fd) for fd in range(512))


def _is_open(fd: int) -> bool:
    with suppress(OSError):
        os.fstat(fd)
        return True
    return False


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o2775, 0o1777])
@pytest.mark.parametrize("which", ["leaf", "parent", "grandparent"])
def test_a_component_that_others_can_write_to_is_named_with_its_remedy(
    base: Path, which: str, mode: int
) -> None:
    leaf = made(base / "grandparent/parent/leaf")
    loose = next(folder for folder in (leaf, *leaf.parents) if folder.name == which)
    loose.chmod(mode)
    if which != "leaf" and mode == 0o1777 and os.geteuid() == 0:
        assert read(leaf) == GOOD  # as in /tmp: root's and sticky
        return
    before = n_open()
    refused = refusal(leaf)
    assert str(loose) in refused.what and n_open() == before
    if mode != 0o1777:
        assert f"{mode:04o}" in refused.what and refused.mend == f"chmod go-w {loose}"
        loose.chmod(mode & ~0o022)  # what the remedy does
        assert read(leaf) == GOOD


def test_a_file_that_others_can_write_to(base: Path) -> None:
    folder = made(base / "folder")
    for mode in (0o664, 0o646, 0o666):
        (folder / "file").chmod(mode)
        assert refusal(folder).mend == f"rm -r {folder}/file"


@as_root
@pytest.mark.parametrize("which", ["leaf", "parent"])
def test_a_folder_of_another_user(base: Path, which: str) -> None:
    leaf = made(base / "parent/leaf")
    theirs = leaf if which == "leaf" else leaf.parent
    os.chown(theirs, OTHER, -1)
    assert f"{theirs} belongs to user {OTHER}" in refusal(leaf).what
    theirs.chmod(0o1755)  # sticky, but not root's
    assert f"{theirs} belongs to user {OTHER}" in refusal(leaf).what


@as_root
def test_a_file_of_another_user_in_a_good_folder(base: Path) -> None:
    folder = made(base / "folder")
    os.chown(folder / "file", OTHER, -1)
    assert f"belongs to user {OTHER}" in refusal(folder).what


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_regular_file_is_neither_read_nor_replaced(base: Path, kind: str) -> None:
    folder = made(base / "folder")
    odd = folder / "odd"
    if kind == "link":
        odd.symlink_to("file")
    elif kind == "folder":
        odd.mkdir()
    else:
        os.mkfifo(odd)
    kept = stat.S_IFMT(odd.lstat().st_mode)
    assert "no regular file" in refusal(folder, "odd").what
    with open_folder(folder) as opened, pytest.raises(Untrusted):
        opened.write("odd", b"new")
    assert stat.S_IFMT(odd.lstat().st_mode) == kept
    assert names(folder) == ["file", "odd"] and read(folder) == GOOD


def test_links_of_ones_own_are_followed_as_the_system_does(base: Path) -> None:
    made(base / "a/b/good")
    (base / "absolute").symlink_to(base / "a" / "b")
    (base / "relative").symlink_to("a/b/../b/good/")
    (base / "a/up").symlink_to("..")
    (base / "chain").symlink_to("a/up/absolute/good")
    for path in ("absolute/good", "relative", "chain", "a/up/a/../a/b/good", "absolute/../b/good"):
        with open_folder(base / path) as opened:
            assert opened.read("file") == GOOD
            assert opened.path == (base / path).resolve() == base / "a/b/good"
    (base / "loop").symlink_to("loop")
    before = n_open()
    with pytest.raises(OSError, match="symbolic links"):
        open_folder(base / "loop")
    with pytest.raises(FileNotFoundError, match="absent"):
        open_folder(base / "a/absent/..")
    with pytest.raises(NotADirectoryError, match="good/file"):
        open_folder(base / "a/b/good/file")
    assert n_open() == before


def test_each_component_of_a_links_target_is_checked(base: Path) -> None:
    loose = made(base / "loose/good").parent
    loose.chmod(0o775)
    (base / "link").symlink_to("loose/good")
    assert str(loose) in refusal(base / "link").what
    # Also those that the path itself leaves again.
    made(base / "good")
    assert str(loose) in refusal(base / "loose/../good").what


def test_a_sticky_folder_may_not_hold_the_files(base: Path) -> None:
    assert "takes files of all users" in refusal(Path("/tmp").resolve()).what
    (base / "here").symlink_to("..")  # a link whose target is what it passes last
    if base.parent.name == "tmp":
        assert "takes files of all users" in refusal(base / "here").what


@as_root
def test_a_link_of_another_user_is_not_followed(base: Path) -> None:
    made(base / "good")
    (base / "link").symlink_to("good")
    os.chown(base / "link", OTHER, -1, follow_symlinks=False)
    assert f"symbolic link of user {OTHER}" in refusal(base / "link").what


def test_names_that_are_none(base: Path) -> None:
    with pytest.raises(OSError, match="NUL"):
        open_folder(base / "a\0b", make=True)
    with pytest.raises(OSError, match="too long"):
        open_folder(base / ("x" * 300), make=True)
    assert names(base) == []


def test_what_is_missing_is_made_for_oneself_alone(base: Path) -> None:
    old = os.umask(0)
    try:
        with open_folder(base / "new/folder", make=True) as opened:
            opened.write("name", b"a", b"bc")
            assert opened.read("name") == b"abc"
            opened.write("name", b"other")
            assert opened.read("name") == b"other"
            opened.try_writing()
    finally:
        os.umask(old)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in base.rglob("*")}
    folder, file = (0o755, 0o644) if os.geteuid() == 0 else (0o700, 0o600)
    assert modes == {"new": folder, "folder": folder, "name": file}


def test_a_failed_write_leaves_what_was_there(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    made(base / "folder")
    with open_folder(base / "folder") as opened:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            opened.write("file", b"new")
        with pytest.raises(OSError, match="No space"):
            opened.try_writing()
    assert names(base / "folder") == ["file"] and read(base / "folder") == GOOD


@as_root
def test_a_plain_user_passes_folders_that_only_root_can_list(base: Path) -> None:
    folder = made(base / "home/user")
    for path in (folder, folder / "file"):
        os.chown(path, OTHER, OTHER)
    folder.parent.chmod(0o711)

    def check() -> None:
        assert read(folder) == EVIL
        with open_folder(folder / "cache" / "kernels", make=True) as opened:
            opened.write("name", b"x")
            assert opened.is_writable() and opened.sizes(lambda name: True) == [1]
        with open_folder(folder.parent) as opened:
            assert not opened.is_writable()
        for made_one, mode in (("cache", 0o700), ("cache/kernels/name", 0o600)):
            assert stat.S_IMODE((folder / made_one).stat().st_mode) == mode

    (folder / "file").write_bytes(EVIL)
    with second_user(check) as pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# ── Races ────────────────────────────────────────────────────────────────────────────────────────


def look_up(n: int, folder: Path) -> dict[bytes | None, int]:
    """How often which content was read, None for refused, opening the folder anew each time."""
    found: dict[bytes | None, int] = {GOOD: 0, EVIL: 0, None: 0}
    before = n_open()
    for _ in range(n):
        try:
            found[read(folder)] += 1
        except (Untrusted, OSError):
            found[None] += 1
    assert n_open() == before
    return found


def test_a_link_that_flips_between_check_and_read(base: Path) -> None:
    """10^4 look-ups through a link that a thread moves between a good folder and a loose one."""
    made(base / "good")
    made(base / "loose", EVIL).chmod(0o777)
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            for target in ("good", "loose"):
                _point(base / "link", target)

    _point(base / "link", "good")
    thread = threading.Thread(target=flip)
    thread.start()
    try:
        found = look_up(10_000, base / "link")
    finally:
        stop.set()
        thread.join()
    assert found[EVIL] == 0 and found[GOOD] and found[None]


def _point(link: Path, target: str) -> None:
    """Have a link point elsewhere, at once."""
    new = link.with_name(f"{link.name}.new")
    with suppress(FileNotFoundError):
        new.unlink()
    new.symlink_to(target)
    new.replace(link)


def _swap(one: Path, other: Path) -> None:
    """Exchange two names, by way of a third."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


@contextmanager
def second_user(work: Callable[[], None]) -> Iterator[int]:
    """A process of another user that does `work`; killed when the block ends."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(OTHER)
            os.setuid(OTHER)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


Attack = tuple[Path, Callable[[], None]]


def _temporary(base: Path) -> Attack:
    """The second user owns the folder that stands for the temporary one."""
    temporary = foreign(base / "theirs")
    good, evil = made(temporary / "good"), foreign(temporary / "evil")
    (temporary / "cache").symlink_to("evil")
    os.chown(temporary / "cache", OTHER, OTHER, follow_symlinks=False)

    def attack() -> None:
        _point(temporary / "cache", "good")
        _point(temporary / "cache", "evil")
        _swap(good, evil)

    return temporary / "cache", attack


def _parent(base: Path) -> Attack:
    """The second user may write to a parent and exchanges what is in it."""
    parent = base / "parent"
    parent.mkdir()
    os.chown(parent, -1, OTHER)
    parent.chmod(0o2775)
    made(parent / "cache")
    foreign(parent / "evil")
    return parent / "cache", lambda: _swap(parent / "cache", parent / "evil")


def _group(base: Path) -> Attack:
    """The cache is of the second user's group, which may write: root's, 2775."""
    cache = made(base / "cache")
    os.chown(cache, -1, OTHER)
    cache.chmod(0o2775)

    def attack() -> None:
        (cache / "new").write_bytes(EVIL)
        (cache / "new").replace(cache / "file")

    return cache, attack


def _mended(base: Path) -> Attack:
    """The same, as its owner opens and closes it to the group again and again."""
    cache, attack = _group(base)

    def attempt() -> None:
        with suppress(PermissionError):
            attack()

    return cache, attempt


def _sticky(base: Path) -> Attack:
    """The second user has the folder's name in a sticky folder: a folder, then a link to ours."""
    sticky = base / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    made(base / "good")
    cache = foreign(sticky / "cache")

    def attack() -> None:
        cache.rename(sticky / "aside")
        _point(cache, "../good")
        cache.unlink()
        (sticky / "aside").rename(cache)

    return cache, attack


@as_root
@pytest.mark.parametrize("control", [_temporary, _parent, _group, _mended, _sticky])
@pytest.mark.parametrize("n", [500, pytest.param(100_000, marks=pytest.mark.slow)])
def test_another_users_files_are_never_read(
    base: Path, control: Callable[[Path], Attack], n: int
) -> None:
    cache, attack = control(base)

    def again_and_again() -> None:
        while True:
            attack()

    with second_user(again_and_again) as pid:
        deadline = time.monotonic() + 10
        while not _is_theirs(cache):  # to who looks at names alone, the attack works
            assert time.monotonic() < deadline
        found = {GOOD: 0, EVIL: 0, None: 0}
        for _ in range(10):
            for content, times in look_up(n // 10, cache).items():
                found[content] += times
            if control is _mended:
                cache.chmod(cache.stat().st_mode ^ 0o020)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the second user has given up"
    assert found[EVIL] == 0 and sum(found.values()) == n
    assert found[None] > 0, found


def _is_theirs(cache: Path) -> bool:
    with suppress(OSError):
        return (cache / "file").read_bytes() == EVIL
    return False
