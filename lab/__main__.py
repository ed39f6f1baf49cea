"""`python -m lab`: kvarn's command line with the laboratory's methods."""

import sys

import lab.methods  # noqa: F401 - registers them
from kvarn.cli import main

if __name__ == "__main__":
    sys.exit(main())
