"""Programs in Python that tests run in processes of their own."""

import signal
import subprocess
import sys
from typing import Any


def printed(code: str, *words: object, timeout: float = 300, **options: Any) -> str:
    """What the code prints, which must end well; options: those of `subprocess.run`."""
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout, **options
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def killed(code: str, *words: object) -> None:
    """Runs the code, which must kill its own process."""
    command = [sys.executable, "-c", code, *map(str, words)]
    assert subprocess.run(command, check=False, timeout=300).returncode == -signal.SIGKILL
