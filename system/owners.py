"""The rule of `trust`, for one folder or file: who owns it, and who can write to it."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from typing import NamedTuple

from .errors import KvarnError
from .text import one_line

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LINE = 4096  # a path as long as Linux takes


class Untrusted(KvarnError):
    """Another user may have written a file or can write to a folder.

    reason  the path and its fault
    fix     the command that corrects it
    """

    def __init__(self, reason: str, fix: str) -> None:
        self.reason, self.fix = one_line(reason, _LINE), one_line(fix, _LINE)
        super().__init__(f"{self.reason}: {self.fix}")


class Writers(NamedTuple):
    """Who may write beside root and this user: a user, and a group (-1: none)."""

    user: int = -1
    group: int = -1


NOBODY = Writers()


def check_parent(status: os.stat_result, path: Path) -> None:
    check_owner(status, path)
    if not (status.st_uid == 0 and status.st_mode & stat.S_ISVTX):
        check_mode(status, path)


def check_leaf(status: os.stat_result, path: Path) -> None:
    check_owner(status, path)
    if status.st_mode & _OTHERS and status.st_mode & stat.S_ISVTX:
        raise Untrusted(f"{path} can be written to by all users", "choose a folder below it")
    check_mode(status, path)


def check_file(status: os.stat_result, path: Path, writers: Writers) -> None:
    remove = f"rm -r {quoted(path)}"  # its content may be another user's: chmod is no remedy
    if not stat.S_ISREG(status.st_mode):
        raise Untrusted(f"{path} is no regular file", remove)
    check_owner(status, path, remove, writers)
    check_mode(status, path, remove, writers)


def check_owner(
    status: os.stat_result, path: Path, fix: str = "", writers: Writers = NOBODY
) -> None:
    if status.st_uid not in (0, user := os.geteuid(), writers.user):
        reason = f"{path} belongs to user {status.st_uid}"
        raise Untrusted(reason, fix or f"chown {user} {quoted(path)}")


def check_mode(
    status: os.stat_result, path: Path, fix: str = "", writers: Writers = NOBODY
) -> None:
    allowed = stat.S_IWGRP if status.st_gid == writers.group else 0
    if status.st_mode & _OTHERS & ~allowed:
        who = "everyone" if status.st_mode & stat.S_IWOTH else f"group {status.st_gid}"
        reason = f"{path} can be written to by {who} (mode {stat.S_IMODE(status.st_mode):04o})"
        raise Untrusted(reason, fix or f"chmod go-w {quoted(path)}")


def quoted(path: Path) -> str:
    return shlex.quote(str(path))
