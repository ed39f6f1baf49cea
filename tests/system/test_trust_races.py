"""Nothing of another user is read, whatever that user renames, replaces and links meanwhile.

What the owner of a folder may do has no other oracle than the system: the second user is a process
that tries, and a look-up by names alone shows that it succeeds.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kvarn.system.trust import Untrusted

from .users import EVIL, GOOD, OTHER, as_root, foreign, made, n_open, read, second_user


def look_up(n: int, folder: Path) -> dict[bytes | None, int]:
    """How often which content was read, None for refused, opening the folder anew each time."""
    counts: dict[bytes | None, int] = {GOOD: 0, EVIL: 0, None: 0}
    before = n_open()
    for _ in range(n):
        try:
            counts[read(folder)] += 1
        except (Untrusted, OSError):
            counts[None] += 1
    assert n_open() == before
    return counts


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
        counts = look_up(10_000, base / "link")
    finally:
        stop.set()
        thread.join()
    assert counts[EVIL] == 0 and counts[GOOD] and counts[None]


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
        counts = {GOOD: 0, EVIL: 0, None: 0}
        for _ in range(10):
            for content, times in look_up(n // 10, cache).items():
                counts[content] += times
            if control is _mended:
                cache.chmod(cache.stat().st_mode ^ 0o020)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the second user has given up"
    assert counts[EVIL] == 0 and sum(counts.values()) == n
    assert counts[None] > 0, counts


def _is_theirs(cache: Path) -> bool:
    with suppress(OSError):
        return (cache / "file").read_bytes() == EVIL
    return False
