"""Options of commands that answer over HTTP."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ...system.errors import KvarnError, WrongUsage
from ...system.reading import MOST_TEXT, read_file
from ...system.values import LOOPBACK, count
from .values import argument_type, file_path


def keys_from(keys: Sequence[str] | None, file: Path | None) -> tuple[str, ...]:
    """The keys that options name, or those in the lines of a file. Raises `KvarnError` for a file
    without one, and for what cannot be a key."""
    if file is not None:
        keys = [line for line in _lines_of(file) if line]
        if not keys:
            raise KvarnError(f"{file} has no key: expected one on each line")
    return tuple(map(key, keys or ()))


def key(text: str) -> str:
    """An argparse type: what can be a key or a token, also in a header of HTTP."""
    if not (text and text.isascii() and text.isprintable()):
        raise WrongUsage("a key is empty or has characters that are not printable ASCII")
    return text


def _lines_of(file: Path) -> list[str]:
    text = read_file(file, MOST_TEXT).decode("utf-8", "replace")
    return [line.strip() for line in text.splitlines()]


def check_open(option: str, host: str, closed: bool, advice: str) -> None:
    """Raise `KvarnError` where an option lets other machines ask, unless something keeps them
    out."""
    if not host:
        raise WrongUsage(f"{option} is empty, expected a name or an address")
    if host not in LOOPBACK and not closed:
        raise WrongUsage(f"{option} {host} lets other machines ask: {advice}")


def add_token_options(group: argparse._ActionsContainer, help: str) -> argparse.Action:
    """`--token` and `--token-file`, one of which may be given; each gives what shards and their
    heads know. Returns `--token`."""
    one = group.add_mutually_exclusive_group()
    one.add_argument(
        "--token-file",
        metavar="FILE",
        type=_token_in,
        help=f"{help}: the first line of FILE, or what `--token KEY` names",
    )
    return one.add_argument(
        "--token",
        metavar="KEY",
        type=key,
        help="the same as a word, which other users see in `ps`",
    )


def _token_in(path: str) -> str:
    """An argparse type: the token in a file."""
    (line, *_) = _lines_of(file_path(path)) or [""]
    if not line:
        raise KvarnError(f"{path} has no token on its first line")
    return key(line)


def add_address_options(group: argparse._ActionsContainer) -> None:
    """`--host`, `--port`, `--log`."""
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        help="listen on this address (default %(default)s: programs of this machine only)",
    )
    group.add_argument(
        "--port",
        metavar="N",
        type=argument_type(count, 0, 65535),
        default=8080,
        help="listen on this port; 0: any free one (default %(default)s)",
    )
    group.add_argument(
        "--log",
        choices=("text", "json"),
        default="text",
        help="how a request is logged on stderr (default %(default)s)",
    )
