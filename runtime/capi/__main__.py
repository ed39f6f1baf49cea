"""`python -m kvarn.runtime.capi`: build libkvarn, or print the flags of programs that use it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ...system.errors import KvarnError
from ...system.terminal import say, show, show_path
from .build import build, flags_to_compile, flags_to_link


def main() -> int:
    """Run the command; its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kvarn.runtime.capi", description="Build libkvarn, for programs in C."
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("build/libkvarn"),
        help="the folder of the library (default %(default)s)",
    )  # fmt: skip
    flags = parser.add_mutually_exclusive_group()
    flags.add_argument("--cflags", action="store_true", help="print flags for a compiler")
    flags.add_argument("--libs", action="store_true", help="print flags for a linker")
    options = parser.parse_args()
    out = options.out.absolute()
    try:
        if options.cflags:
            show(flags_to_compile(out))
        elif options.libs:
            show(flags_to_link(out))
        else:
            show_path(build(out))
    except (KvarnError, OSError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
