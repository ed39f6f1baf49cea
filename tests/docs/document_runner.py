"""Types what a document says, given as JSON on stdin: a JSON line about each step.

Each block is typed in a folder of its own, with a home of its own. With `--rehearsed`
it prints the files of kernels that `kvarn build` makes instead.
"""

import io
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

from kvarn.cli import main
from kvarn.jit import kernel_cache
from kvarn.jit.launch.lazy import collecting
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.rehearsal import all_rehearsals
from kvarn.runtime.sampling import state

T = TypeVar("T")
SAID = "Who is the miller?\n/stats\n"


def typed(kind: str, text: str, words: list[str]) -> int | str | None:
    """Exit code of one step."""
    if kind == "python":
        Path("snippet.py").write_text(text)
        runpy.run_path("snippet.py", run_name="__main__")
        return 0
    program, *arguments = words
    if program == "kvarn":
        return main(arguments)
    assert words[:2] == ["python", "-m"], f"this runs kvarn and Python, not {text}"
    sys.argv = words[2:]
    runpy.run_module(words[2], run_name="__main__", alter_sys=True)
    return 0


def outcome(kind: str, text: str, words: list[str]) -> dict[str, object]:
    """Exit code, and what was written."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin = io.TextIOWrapper(io.BytesIO(SAID.encode()), "utf-8")
    sys.stdout, sys.stderr = streams
    code: int | str | None
    try:
        code = typed(kind, text, words)
    except SystemExit as stopped:
        code = stopped.code
    except Exception:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    out, err = (stream.buffer.getvalue().decode() for stream in streams)
    asked, _asked[:] = list(_asked), []
    return {"text": text, "code": code, "out": out[-3000:], "err": err[-3000:], "kernels": asked}


_asked: list[str] = []
"""Files of kernels that this process has looked for since the last step."""


def note_kernels() -> None:
    """Keep the files of kernels that are loaded or compiled: each is looked for once."""
    find = kernel_cache.find

    def noted(name: str, parse: Callable[[bytes], T]) -> T | None:
        if name.endswith(".code"):
            _asked.append(name)
        return find(name, parse)

    kernel_cache.find = noted


def rehearsed() -> set[str]:
    """Files of the kernels that rehearsals of the default model need; compiles none."""
    names = set()
    with collecting(lambda kernel: names.add(kernel._name)):
        for rehearsal in all_rehearsals(default_model_path(), [("f16",) * 2, ("q8_0",) * 2]):
            rehearsal()
    return names | kernel_cache.Counts.names


if __name__ == "__main__":
    if "--rehearsed" in sys.argv:
        print(json.dumps(sorted(rehearsed())))
        sys.exit()
    # What is sampled without a seed is the same in every run.
    state.secrets = SimpleNamespace(randbits=lambda bits: 7)  # type: ignore[assignment]
    note_kernels()
    for block in json.load(sys.stdin):
        os.chdir(block["folder"])
        os.environ["KVARN_HOME"] = block["home"]
        for step in block["steps"]:
            print(json.dumps(outcome(**step)), flush=True)
