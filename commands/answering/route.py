"""`kvarn route`: one address for several servers, each of which has read other texts."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...system.errors import WrongUsage
from ...system.extras import require_extra
from ...system.terminal import say
from ..options.address import add_address_options, check_open, key

if TYPE_CHECKING:
    from ..parsing.parser import Parser

_PORT = 8080
_MOST_REQUESTS = 1 << 16
"""At work at the same time: the servers say how many they take."""


def add(parser: Parser) -> None:
    parser.description = (
        "Answer programs over HTTP by passing each request on to one of several kvarn servers: to "
        "the one that has read most of its prompt, else to the least busy. A server that does not "
        "answer is left out until it does."
    )
    parser.add_argument(
        "--to",
        metavar="HOST",
        nargs="+",
        action="extend",
        required=True,
        help=f"the servers: HOST, HOST:PORT (default {_PORT}) or an address with http://",
    )
    group = parser.add_argument_group("server")
    add_address_options(group)
    group.add_argument(
        "--api-key",
        metavar="KEY",
        type=key,
        help="a key of the servers, for asking them what they have read; requests bring their own",
    )
    group.add_argument(
        "--no-auth",
        action="store_true",
        help="with another --host: take requests from everybody; servers with keys check them",
    )


def run(options: argparse.Namespace) -> int:
    with require_extra("serve", "kvarn route"):
        settings: Any = import_module("...serve.settings", __package__)
        route: Any = import_module("...serve.route", __package__)
        server: Any = import_module("...serve.running", __package__)
    advice = "start the servers with --api-key KEY, and give --no-auth here: they check the keys"
    check_open("--host", options.host, options.no_auth, advice)
    urls = [address(word) for word in dict.fromkeys(options.to)]
    replicas = route.Replicas(urls, options.api_key or "", say)
    server_settings = settings.Settings(
        Path(),
        Path(),
        0,
        host=options.host,
        port=options.port,
        parallel=_MOST_REQUESTS,
        log=options.log,
    )
    server.serve(server_settings, replicas, lambda service: route.proxy(service, replicas))
    return 0


def address(word: str) -> str:
    """The URL of a server, without a / at its end. Raises `KvarnError` for what is none."""
    try:
        parts = urlsplit(word if "://" in word else f"http://{word}")
        port = parts.port or (_PORT if "://" not in word else None)
        host = parts.hostname or ""
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    plain = parts.scheme in ("http", "https") and not (parts.query or parts.fragment)
    if not host or not plain or "@" in parts.netloc or not word.isprintable() or " " in word:
        raise WrongUsage(
            f"--to {word!r:.100} is no server: expected HOST, HOST:PORT or http://HOST:PORT"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}{f':{port}' if port else ''}{parts.path.rstrip('/')}"
