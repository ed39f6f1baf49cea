"""`python -m kvarn.runtime.capi`: build libkvarn, or print the flags of programs that use it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...system.errors import KvarnError
from ...system.terminal import say, show, show_path
from ..loading.default_model import default_model_path
from .build import DEFAULT, build, built_library, flags_to_compile, flags_to_link
from .bundle import ALL, CHOICES, bundle


def main() -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kvarn.runtime.capi", description="Build libkvarn, for programs in C."
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help=f"the folder of the library (default {DEFAULT}; for flags also that of a checkout)",
    )
    parser.add_argument(
        "--bundle",
        metavar="DIR",
        type=Path,
        help="make a folder with Python and all that running needs, which can be moved",
    )
    parser.add_argument(
        "--kernels",
        choices=CHOICES,
        default=ALL,
        help="what the bundle has compiled ahead: "
        + "; ".join(f"{name}: {what}" for name, what in CHOICES.items())
        + " (default %(default)s)",
    )
    parser.add_argument(
        "--model",
        metavar="FILE",
        type=Path,
        action="append",
        help="compile the bundle's kernels for this model; may be repeated (default: the default "
        "model)",
    )
    flags = parser.add_mutually_exclusive_group()
    flags.add_argument("--cflags", action="store_true", help="print flags for a compiler")
    flags.add_argument("--libs", action="store_true", help="print flags for a linker")
    options = parser.parse_args()
    try:
        if options.bundle:
            models = options.model or [default_model_path()]
            show_path(bundle(options.bundle.absolute(), options.kernels, models, say))
        elif options.cflags:
            show(flags_to_compile(built_library(options.out)))
        elif options.libs:
            show(flags_to_link(built_library(options.out)))
        else:
            show_path(build((options.out or DEFAULT).absolute()))
    except (KvarnError, OSError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
