"""A program whose standard input is a pseudo-terminal."""

import codecs
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class PseudoTerminal:
    """What a user types and sees; stdout can be a pipe instead, as in `kvarn chat | tee log`."""

    def __init__(self, arguments: Sequence[str], piped: bool = False) -> None:
        self._fd, child = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=child,
            stdout=subprocess.PIPE if piped else child,
            stderr=child,
            start_new_session=True,
        )
        os.close(child)
        self._seen = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, seconds: float = 240.0) -> None:
        """Reads until `text` appears after what was waited for before."""
        deadline = time.monotonic() + seconds
        while text not in self._seen:
            ready, _, _ = select.select([self._fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not appear in {self._seen!r}"
            self._seen += self._decoder.decode(os.read(self._fd, 4096))
        self._seen = self._seen.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._fd)


@contextmanager
def pseudo_terminal(*arguments: str, piped: bool = False) -> Iterator[PseudoTerminal]:
    """Python with these arguments; killed at the end."""
    opened = PseudoTerminal(arguments, piped)
    try:
        yield opened
    finally:
        opened.close()
