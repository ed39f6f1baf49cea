"""Work killed at one of its calls, in processes of its own; what these run imports it too."""

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ....programs import printed


def calls_of(work: Callable[[], object], last: int = 0) -> int:
    """How many calls of Python and C the work makes; it is killed at number `last`."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    work()
    sys.setprofile(None)
    return calls


def tell_killed(work: Callable[[], object], last: int) -> None:
    """Do the work in a child, killed at call number `last`, and print whether it was."""
    child = os.fork()
    if not child:
        calls_of(work, last)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)


def live(code: str, *words: str | Path, lives: int, seed: int) -> None:
    """Run the code, which tells of so many lives, each killed at a random share of its calls."""
    shares = [str(random.Random(seed + i).random()) for i in range(lives)]
    done = printed(code, *words, *shares)
    # A life may need a few calls less than the first one, and end before it is killed.
    assert done.split().count("True") >= 0.8 * lives
