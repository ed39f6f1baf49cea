"""Calls libkvarn through ctypes with arguments of any kind: `python fuzz.py LIBRARY EXAMPLES`."""

import ctypes
import json
import resource
import sys
from pathlib import Path
from typing import Any

from host import ON_PROGRESS, ON_TEXT, SIGNATURES, Kvarn
from hypothesis import given, settings
from hypothesis import strategies as st


def fuzz(k: Kvarn, n: str) -> dict[str, Any]:
    """Calls with arguments of any kind: how often each result came; none may be 0, or a fault."""
    assert k.start_api(1, None) == 1, k.error()
    model = k.model_open(None, None, None, None)
    context = k.context_new(model, b'{"ctx": 64}')
    freed = k.context_new(model, b'{"ctx": 64}')
    assert k.context_free(freed) == 1
    buffer = ctypes.create_string_buffer(20000)
    calls, growth = dict.fromkeys(("failed", "done"), 0), []
    names = [
        "ctx",
        "kv_type",
        "method",
        "keep",
        "budget",
        "keep_budget",
        "prefill",
        "prefill_k",
        "prefill_from",
        "kv_on",
        "device",
        "io",
        "temp",
        "top_k",
        "seed",
        "stop",
        "max_tokens",
        "logit_bias",
        "threads",
        "sink",
        "window",
        "bits",
        "x",
    ]
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    values = (
        scalars
        | st.lists(scalars, max_size=3)
        | st.sampled_from(["topk", "hash", "sparse", "cpu", "host", "1%", "4K"])
    )
    objects = st.dictionaries(st.sampled_from(names), values, max_size=3)
    given_options = objects.map(lambda o: json.dumps(o).encode()) | st.binary(max_size=12)
    roles = st.sampled_from(["user", "system", "assistant", ""])
    message = st.fixed_dictionaries({"role": roles, "content": st.text(max_size=20)})
    messages = st.lists(message, max_size=3).map(lambda m: json.dumps(m).encode())
    handles = st.sampled_from([model, context, freed, None, 1, 2**63]) | st.integers(0, 2**64 - 1)
    texts = st.none() | st.binary(max_size=60) | st.text(max_size=40).map(str.encode)
    ids = st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 500), max_size=30)
    room, flags = st.sampled_from([0, 1, 100, 20000]), st.integers(-1, 9)
    stops = st.integers(0, 3)

    def check(result: Any, is_handle: bool = False) -> None:
        said = k.error().decode()
        if result is None or (not is_handle and result < 0):
            calls["failed"] += 1
            assert said and "\n" not in said and "unexpected" not in said, said
        else:
            calls["done"] += 1
            assert result != 0 and not said, (result, said)

    @settings(max_examples=int(n), deadline=None, database=None, derandomize=True)
    @given(st.data())
    def one(data: Any) -> None:
        pick = data.draw
        name = pick(st.sampled_from(sorted(SIGNATURES.keys() - {"stop", "error"})))
        is_model = name in ("model_info", "tokenize", "detokenize", "context_new", "pack_build")
        handle = pick(st.just(model if is_model else context) | handles)
        text, options = pick(texts), pick(st.none() | given_options)
        size, left = len(text or b""), [pick(stops)]

        def ends(*_: object) -> int:
            left[0] -= 1
            return left[0] == 0

        on_text, on_progress = ON_TEXT(ends), ON_PROGRESS(ends)
        if name == "start_api":
            check(k.start_api(pick(st.just(1) | flags), pick(st.none() | st.binary(max_size=9))))
        elif name == "on_log":
            check(k.on_log(None, None))
        elif name == "model_open":
            path = pick(st.sampled_from([None, b"", b"/", b"\xff", b"/dev/null"]))
            made = k.model_open(path, options, on_progress, None)
            check(made, is_handle=True)
            if made:
                check(k.model_free(made))
        elif name == "context_new":
            made = k.context_new(handle, options)
            check(made, is_handle=True)
            if made:
                check(k.context_free(made))
        elif name in ("model_free", "context_free"):
            if handle not in (model, context):
                check(getattr(k, name)(handle))
        elif name in ("model_info", "context_info", "logits"):
            check(getattr(k, name)(handle, buffer, pick(st.sampled_from([0, 1, 4096]))))
        elif name == "tokenize":
            check(k.tokenize(handle, text, size, pick(flags), buffer, pick(room) // 4))
        elif name in ("detokenize", "read_ids"):
            known = pick(ids)
            array = (ctypes.c_int32 * len(known))(*known)
            if name == "read_ids":
                check(k.read_ids(handle, array, len(known), on_progress, None))
            else:
                check(k.detokenize(handle, array, len(known), pick(flags), buffer, pick(room)))
        elif name == "read":
            check(k.read(handle, text, size, on_progress, None))
        elif name == "truncate":
            check(k.truncate(handle, pick(st.integers(0, 70) | st.integers(0, 2**64 - 1))))
        elif name in ("save", "cancel"):
            check(getattr(k, name)(handle))
        elif name == "generate":
            check(k.generate(handle, options, on_text, None))
        elif name == "chat":
            check(k.chat(handle, pick(messages | given_options), options, on_text, None))
        elif name == "pack_build":
            pack = f"./pack-{size}".encode()
            check(k.pack_build(handle, pack, text, size, options, on_progress, None))
        else:
            check(k.pack_info(pick(st.none() | st.binary(max_size=9)), buffer, 20000))
        growth.append(resident())

    one()
    return {**calls, "growth": growth[-1] - growth[len(growth) // 2]}


def resident() -> int:
    """KiB of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


if __name__ == "__main__":
    print(json.dumps(fuzz(Kvarn(sys.argv[1]), sys.argv[2])))
