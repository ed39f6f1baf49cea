"""`kvarn run`, interrupted while it generates."""

import signal
import subprocess
import sys
import time
from pathlib import Path


def said_on_ctrl_c(model: Path, *options: str) -> bytes:
    """Its stderr, without a traceback; its exit code is 130."""
    endless = ["-p", "x", "-n", "-1", "--temp", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "kvarn", "run", str(model), *options, *endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in err
    return err
