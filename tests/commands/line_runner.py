"""Runs command lines, given as JSON on stdin, in this process; a JSON line about each on stdout."""

import faulthandler
import io
import json
import sys

from kvarn.cli import main

TYPED = b"hello\n/stats\n/save \x00\n/load text.txt\n/system \xff\n/undo\n/nothing\n"


def outcome(arguments: list[str]) -> dict[str, object]:
    """Exit code and what was written; streams as strict as a user's may be."""
    streams = [io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True) for _ in range(2)]
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(TYPED), "utf-8")
    sys.stdout, sys.stderr = streams
    try:
        code = main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    return {"code": code, "out": out[-2000:], "err": err}


if __name__ == "__main__":
    faulthandler.enable()  # who loses patience aborts, and sees where it hung
    for line in sys.stdin:
        print(json.dumps(outcome(json.loads(line))), flush=True)
