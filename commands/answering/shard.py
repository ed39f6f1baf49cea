"""`kvarn shard`: segments of a pack, for contexts on other machines that begin with it."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from ...runtime.engine import on_engine
from ...runtime.home import pack_path
from ...runtime.memory import human_bytes
from ...runtime.shards.addresses import parse_address
from ...system.terminal import say
from ..options.address import add_token_options, check_open
from ..options.model_options import add_threads_option
from ..options.values import file_name

if TYPE_CHECKING:
    from ..parsing.parser import Parser

_ADDRESS = "127.0.0.1:8090"
_RANGE = re.compile(r"(\d{0,9}):(\d{0,9})", re.ASCII)


def add(parser: Parser) -> None:
    parser.description = (
        "Hold some segments of a pack (1,024 tokens each) and attend to them for `kvarn run --pack "
        "PACK --shards HOST:PORT,…` on another machine. Needs the pack, and no model."
    )
    parser.add_argument("pack", metavar="PACK", type=file_name, help="a pack's name or folder")
    parser.add_argument(
        "--segments",
        metavar="A:B",
        type=_segments,
        required=True,
        help="hold segments A to B - 1, as 0:8; without B, all full ones from A on",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=_ADDRESS,
        help="answer at this address (default %(default)s: for this machine only); port 0: any "
        "free one",
    )
    add_token_options(parser, "with another address than this machine's, what heads have to know")
    add_threads_option(parser)


def _segments(text: str) -> tuple[int, int | None]:
    """An argparse type: A:B."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected A:B, such as 0:8, found {text!r:.40}")
    first, stop = int(match[1] or 0), int(match[2]) if match[2] else None
    if stop is not None and first >= stop:
        raise argparse.ArgumentTypeError(f"expected A:B with A below B, found {text!r:.40}")
    return first, stop


def run(options: argparse.Namespace) -> int:
    host, port = parse_address(options.listen)
    token = options.token or options.token_file or ""
    check_open("--listen", host, bool(token), "give --token KEY")
    from ...jit.threads import n_threads, set_threads
    from ...runtime.shards.serving import ShardServer
    from ...runtime.shards.shard import Shard

    if options.threads:
        on_engine(set_threads, options.threads)
    shard = Shard(pack_path(options.pack), *options.segments, alone=n_threads() == 1)
    server = ShardServer(shard, host, port, token, say)
    facts = shard.facts
    say(
        f"listening on {server.address} for tokens {facts.first:,} to {facts.stop - 1:,} of pack "
        f"{options.pack}, {human_bytes(shard.n_bytes)}; Ctrl-C ends it"
    )
    try:
        server.serve()
    finally:
        server.close()
    return 0
