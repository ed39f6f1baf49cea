"""`python -m kvarn.runtime.serving DESCRIPTOR`: an engine process, as `client` starts it."""

import sys

from .engine import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
