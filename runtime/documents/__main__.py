"""`python -m kvarn.runtime.documents NAME SUFFIX`: a document on stdin as text on stdout.

For servers: documents come from strangers, and readers of them are large. They run in a process
that has limits, and that can be ended. Out comes one JSON object: {"text", "notices"}, or
{"refused": why}, with "missing" where it is for want of the readers.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from ...system.errors import KvarnError, message_of
from .kinds import ReaderMissing, text_of

MEMORY = 4 << 30
"""Bytes of memory of one document's reader, on Linux. (macOS does not enforce it.)"""
SECONDS = 600
"""Of CPU time."""


def converted(data: bytes, name: str, suffix: str) -> dict[str, Any]:
    """The converted document as a JSON object."""
    notices: list[str] = []
    try:
        return {"text": text_of(data, name, suffix, notices.append), "notices": notices}
    except MemoryError:
        return {"refused": f"{name} takes more than {MEMORY >> 30} GiB to read: cut it in parts"}
    except KvarnError as error:
        return {"refused": message_of(error), "missing": isinstance(error, ReaderMissing)}


def main() -> None:
    """Convert what is on stdin."""
    _, name, suffix = sys.argv
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    if sys.platform != "darwin":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answer = converted(sys.stdin.buffer.read(), name, suffix)
    sys.stdout.buffer.write(json.dumps(answer).encode())


if __name__ == "__main__":
    main()
