"""`python -m kvarn`, and the command `kvarn`."""

import sys


def main() -> int:
    """Run the command line: `cli.main`, and a way out while it is imported."""
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
