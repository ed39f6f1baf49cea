"""Renders hostile templates and prints the time and memory that each took.

    python -m tests.runtime.chat.run_probes NAME…

A small program of its own, because the peak memory that Linux reports for a process includes that
of the process which started it.
"""

import json
import resource
import sys
import time

from .probes import PROBES


def run(name: str) -> dict[str, object]:
    """What the probe gave, and what its process took: seconds of CPU, and bytes up to now."""
    from kvarn.runtime.chat.sandbox.errors import TemplateError
    from kvarn.runtime.chat.template import ChatTemplate

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    source = PROBES[name] * (15_000_000 if name.endswith("100 MB of source") else 1)
    before, started = spent(), time.monotonic()
    try:
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
        text, error = template.render([{"role": "user", "content": "hi"}]), None
        template._renderer._worker.end()
    except TemplateError as caught:
        text, error = "", str(caught)
        template = None  # which ends its process
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "name": name,
        "text": text[:1000],
        "length": len(text),
        "error": error,
        "cpu": spent() - before,
        "wall": time.monotonic() - started,
        "memory": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit,
        "ours": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


if __name__ == "__main__":
    for probe in sys.argv[1:]:
        print(json.dumps(run(probe)), flush=True)
