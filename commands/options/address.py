"""Options of commands that answer over HTTP."""

from __future__ import annotations

import argparse

from ...system.values import count
from .values import typed


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
        type=typed(count, 0, 65535),
        default=8080,
        help="listen on this port; 0: any free one (default %(default)s)",
    )
    group.add_argument(
        "--log",
        choices=("text", "json"),
        default="text",
        help="how a request is logged on stderr (default %(default)s)",
    )
