"""Options of commands that work on several machines."""

from __future__ import annotations

import argparse

from ...system.errors import WrongUsage
from ...system.extras import how_to_install
from .values import positive, utf8


def add_ray_options(parser: argparse._ActionsContainer, work: str) -> None:
    """Adds `--ray` and `--ray-workers`. work: what the machines do."""
    parser.add_argument(
        "--ray",
        metavar="HOST:PORT|auto|local",
        type=utf8,
        help=f"{work} on all machines of a Ray cluster: that of HOST:PORT, that which this machine "
        "is in (auto), or one of this machine alone, for this command (local); needs "
        + how_to_install("ray"),
    )
    parser.add_argument(
        "--ray-workers",
        metavar="N",
        type=positive,
        help="with --ray, N processes on each machine (default 1), each of -t threads",
    )


def check_ray_options(options: argparse.Namespace) -> None:
    """Raises `KvarnError` for options that have no effect, and for a GPU."""
    if options.ray is None:
        if options.ray_workers is not None:
            raise WrongUsage("--ray-workers has no effect without --ray: give both")
    elif getattr(options, "device", "cpu") != "cpu":
        raise WrongUsage("--ray computes on CPUs: omit --device")
