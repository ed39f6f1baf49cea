"""Processes that lost their threads: forked ones, and those that are ending."""

import subprocess
import sys
from pathlib import Path

import pytest

FORKED = """
import gc, os, signal, sys
from pathlib import Path
import kvarn

path, folder = sys.argv[1], Path(sys.argv[2])
model = kvarn.load(path)
context = model.context(64, store=kvarn.Disk(folder / "pack"))
context.prefill([1, 2, 3])
going = context.generate_ids(max_tokens=8, stop_at_eos=False)
next(going)


def contents():
    return {path.name: path.read_bytes() for path in (folder / "pack").iterdir()}


def is_locked():
    try:
        model.context(64, store=kvarn.Disk(folder / "pack")).close()
    except kvarn.KvarnError as error:
        return "another process" in str(error)
    return False


def close():
    context.close()
    assert context.tokens == [1, 2, 3] or len(context.tokens) > 3


def leave():
    with context:
        sys.exit(0)


def drop():
    global context, going, model
    del context, going, model
    gc.collect()


def tokenize():
    assert model.tokenizer.encode("a mill") == kvarn.load_tokenizer(path).encode("a mill")


REFUSED = (
    lambda: context.prefill([4]), lambda: context.decode(4), lambda: context.commit(),
    lambda: list(context.generate("x", 2)), lambda: next(going), lambda: model.context(64),
    lambda: kvarn.load(path), lambda: model.context(64, store=kvarn.Disk(folder / "new")),
)
before = contents()
for number, act in enumerate((*REFUSED, close, leave, drop, tokenize)):
    child = os.fork()
    if not child:
        signal.alarm(20)
        try:
            act()
        except kvarn.KvarnError as error:
            assert "was forked" in str(error)
            os._exit(7)
        except SystemExit:
            sys.exit(0)  # through all that an interpreter does at its end
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (7 if number < len(REFUSED) else 0), (number, code)
    assert contents() == before and is_locked(), number
assert not (folder / "new").exists()
list(going)
context.close()
print("done")
"""

AFRESH = """
import os, sys
import kvarn
from kvarn.jit import threads
from kvarn.runtime import engine, model
child = os.fork()  # nothing has run yet: the child may
if not child:
    kvarn.load(sys.argv[1]).context(64).prefill([1, 2])
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

ENDING = """
import atexit, os, sys, threading, time
import kvarn

model = kvarn.load(sys.argv[1])
context = model.context(4096)


def compute(label):
    try:
        while True:
            context.truncate(0)
            context.prefill([1, 2, 3])
            list(context.generate_ids(max_tokens=20, stop_at_eos=False))
    except kvarn.KvarnError as error:
        # In one piece: two threads write.
        os.write(1, f"{label} {'cannot compute while the program ends' in str(error)}\\n".encode())


threading.Thread(target=compute, args=["thread"], daemon=sys.argv[2] == "daemon").start()
atexit.register(compute, "atexit")
time.sleep(0.1)
"""


def run(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_forked_process_is_told_so_and_takes_nothing_from_its_parent(
    tiny_path: Path, tmp_path: Path
) -> None:
    assert run(FORKED, tiny_path, tmp_path).splitlines()[-1] == "done"


def test_a_process_that_was_forked_before_the_first_use_computes(tiny_path: Path) -> None:
    assert run(AFRESH, tiny_path).split() == ["5"]


@pytest.mark.parametrize("kind", ["daemon", "waited for"])
def test_a_thread_that_outlives_the_program_ends(tiny_path: Path, kind: str) -> None:
    said = run(ENDING, tiny_path, kind).splitlines()
    assert "atexit True" in said
    assert kind == "daemon" or "thread True" in said
