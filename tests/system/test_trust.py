"""Nothing is read that somebody else can have written, and what is refused is named in one line.

The tests with a second user need root.
"""

import os
import stat
from pathlib import Path

import pytest

from kvarn.system.trust import Untrusted, open_folder

from .users import EVIL, GOOD, OTHER, as_root, made, n_open, names, read, second_user


def refusal(folder: Path, name: str = "file") -> Untrusted:
    with pytest.raises(Untrusted) as refused:
        read(folder, name)
    assert "\n" not in str(refused.value)
    return refused.value


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
    assert str(loose) in refused.reason and n_open() == before
    if mode != 0o1777:
        assert f"{mode:04o}" in refused.reason and refused.fix == f"chmod go-w {loose}"
        loose.chmod(mode & ~0o022)  # what the remedy does
        assert read(leaf) == GOOD


def test_a_file_that_others_can_write_to(base: Path) -> None:
    folder = made(base / "folder")
    for mode in (0o664, 0o646, 0o666):
        (folder / "file").chmod(mode)
        assert refusal(folder).fix == f"rm -r {folder}/file"


@as_root
@pytest.mark.parametrize("which", ["leaf", "parent"])
def test_a_folder_of_another_user(base: Path, which: str) -> None:
    leaf = made(base / "parent/leaf")
    theirs = leaf if which == "leaf" else leaf.parent
    os.chown(theirs, OTHER, -1)
    assert f"{theirs} belongs to user {OTHER}" in refusal(leaf).reason
    theirs.chmod(0o1755)  # sticky, but not root's
    assert f"{theirs} belongs to user {OTHER}" in refusal(leaf).reason


@as_root
def test_a_file_of_another_user_in_a_good_folder(base: Path) -> None:
    folder = made(base / "folder")
    os.chown(folder / "file", OTHER, -1)
    assert f"belongs to user {OTHER}" in refusal(folder).reason


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
    assert "no regular file" in refusal(folder, "odd").reason
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
    assert str(loose) in refusal(base / "link").reason
    # Also those that the path itself leaves again.
    made(base / "good")
    assert str(loose) in refusal(base / "loose/../good").reason


def test_a_sticky_folder_may_not_hold_the_files(base: Path) -> None:
    assert "can be written to by all users" in refusal(Path("/tmp").resolve()).reason
    (base / "here").symlink_to("..")  # a link whose target is what it passes last
    if base.parent.name == "tmp":
        assert "can be written to by all users" in refusal(base / "here").reason


@as_root
def test_a_link_of_another_user_is_not_followed(base: Path) -> None:
    made(base / "good")
    (base / "link").symlink_to("good")
    os.chown(base / "link", OTHER, -1, follow_symlinks=False)
    assert f"symbolic link of user {OTHER}" in refusal(base / "link").reason


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
def test_a_plain_user_keeps_private_files_below_folders_that_only_root_can_list(base: Path) -> None:
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
        folder.chmod(0o1777)  # sticky, but not root's
        assert str(folder) in refusal(folder / "cache").reason

    (folder / "file").write_bytes(EVIL)
    with second_user(check) as pid:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
