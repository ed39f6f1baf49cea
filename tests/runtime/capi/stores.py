"""Stores through libkvarn, in processes that die, collide or find the disk full:
`python stores.py LIBRARY SCRIPT ARGS`, as `host.py`."""

import ctypes
import json
import os
import signal
import sys
from typing import Any

from host import ON_PROGRESS, Kvarn

IDS = [20 + i * 7919 % 200 for i in range(2000)]


def opened(k: Kvarn, store: str) -> tuple[int, int, int]:
    """The default model, a context in a store (0: refused), and the tokens that it holds."""
    assert k.start_api(1, None) == 1, k.error()
    model = k.model_open(None, None, None, None)
    context = k.context_new(model, json.dumps({"ctx": 4096, "store": store}).encode())
    return model, context or 0, held(k, context) if context else 0


def held(k: Kvarn, context: int) -> int:
    buffer = ctypes.create_string_buffer(10000)
    assert k.context_info(context, buffer, 10000) > 1, k.error()
    return int(json.loads(buffer.value)["tokens"])


def read_ids(k: Kvarn, context: int, ids: list[int], on_progress: Any = None) -> int:
    array = (ctypes.c_int32 * len(ids))(*ids)
    return int(k.read_ids(context, array, len(ids), on_progress, None))


def resumes(k: Kvarn, store: str, dies_at: str) -> dict[str, Any]:
    """Reads on, and dies at a number of tokens: what was there before, and the last logits."""
    _, context, before = opened(k, store)

    def on_progress(done: int, _: int, __: object) -> int:
        if before + done >= int(dies_at):
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    assert read_ids(k, context, IDS[before:], ON_PROGRESS(on_progress)) == 2001, k.error()
    logits = (ctypes.c_float * k.logits(context, None, 0))()
    k.logits(context, logits, len(logits))
    assert k.context_free(context) == 1, k.error()
    return {"held": before, "logits": list(logits)}


def collides(k: Kvarn, store: str) -> list[str]:
    """What is said where another process writes the store."""
    model, context, _ = opened(k, store)
    said = [k.error().decode()]
    assert not context
    made = k.pack_build(model, os.fsencode(store), b"Geese.", 6, None, None, None)
    return [*said, f"{made} {k.error().decode()}"]


def fills(k: Kvarn, store: str) -> dict[str, Any]:
    """Reads into a disk that is too small; then what is held, in this process and on the disk."""
    _, context, _ = opened(k, store)
    code = read_ids(k, context, IDS)
    said = k.error().decode()
    freed = k.context_free(context)
    freed_said = k.error().decode()
    model = k.model_open(None, None, None, None)
    again = k.context_new(model, json.dumps({"ctx": 4096, "store": store}).encode())
    assert again, k.error()
    return {"code": code, "said": said, "freed": [freed, freed_said], "held": held(k, again)}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](Kvarn(sys.argv[1]), *sys.argv[3:])))
