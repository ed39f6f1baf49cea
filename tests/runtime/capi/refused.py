"""All the bad input that a program gives libkvarn, for tests: `python refused.py LIBRARY SCRIPT
ARGS`, as `host.py`."""

import ctypes
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from host import ON_PROGRESS, ON_TEXT, Kvarn, read


def refusals(k: Kvarn, model_path: str, other_path: str, folder: str) -> dict[str, Any]:
    """All bad input: name → (result, what kvarn_error says)."""
    found: dict[str, Any] = {}
    assert k.start_api(1, None) == 1, k.error()
    model, other = (
        k.model_open(os.fsencode(p), None, None, None) for p in (model_path, other_path)
    )
    context = k.context_new(model, b'{"ctx": 128}')
    assert model and other and context, k.error()
    freed = k.context_new(model, b'{"ctx": 128}')
    assert k.context_free(freed) == 1
    freed_model = k.model_open(os.fsencode(model_path), None, None, None)
    assert k.model_free(freed_model) == 1

    def note(name: str, result: Any) -> None:
        found[name] = k.said(result)

    note("null model", k.tokenize(None, b"a", 1, 0, None, 0))
    note("freed model", k.context_new(freed_model, None))
    note("null context", k.read(None, b"a", 1, None, None))
    note("freed context", k.read(freed, b"a", 1, None, None))
    note("freed twice", k.context_free(freed))
    note("cancel freed", k.cancel(freed))
    note("model as context", k.read(model, b"a", 1, None, None))
    note("context as model", k.model_info(context, None, 0))
    note("no handle", k.save(12345))
    note("model in use", k.model_free(model))
    note("null text", k.read(context, None, 3, None, None))
    note("null ids", k.read_ids(context, None, 3, None, None))
    note("negative length", k.read(context, b"a", 2**64 - 1, None, None))
    note("no utf-8", k.read(context, b"ab\xffcd", 5, None, None))
    note("bad id", k.read_ids(context, (ctypes.c_int32 * 2)(3, 1 << 30), 2, None, None))
    note("null buffer", k.model_info(model, None, 10))
    note("flags", k.tokenize(model, b"a", 1, 8, None, 0))
    note("empty context", k.logits(context, None, 0))
    note("too long", read(k, context, "word " * 500))
    note("truncate", k.truncate(context, 5))
    note("no on_text", k.generate(context, None, None, None))
    for name, options in {
        "options are no json": "{",
        "options are a list": "[]",
        "options not utf-8": "{\udcff}",
        "unknown option": '{"context": 12}',
        "ctx below 0": '{"ctx": -1}',
        "ctx of words": '{"ctx": "many"}',
        "unknown method": '{"method": "guess"}',
        "option of another method": '{"method": "full", "budget": "1%"}',
        "budget of words": '{"method": "topk", "budget": "all of it"}',
        "kv_type": '{"kv_type": "q9"}',
        "pack and store": '{"pack": "a/b", "store": "c/d"}',
        "no such pack": '{"pack": "nowhere"}',
        "larger than memory": '{"ctx": "1024M"}',
    }.items():
        note(name, k.context_new(model, options.encode("utf-8", "surrogateescape")))
    read(k, context, "The old mill")
    for name, options in {
        "temperature": '{"temp": "hot"}',
        "top_p of 2": '{"top_p": 2}',
        "max_tokens": '{"max_tokens": -2}',
        "stop of numbers": '{"stop": [1]}',
        "unknown sampling": '{"temperature": 1}',
        "draft of a number": '{"draft": 3}',
        "draft of no file": '{"draft": "/nowhere/small.gguf"}',
        "draft_max alone": '{"draft_max": 4}',
    }.items():
        note(name, k.generate(context, options.encode(), ON_TEXT(lambda *_: 0), None))
    for name, messages in {
        "messages are an object": "{}",
        "message without a role": '[{"content": "a"}]',
        "last message": '[{"role": "assistant", "content": "a"}]',
    }.items():
        note(name, k.chat(context, messages.encode(), None, ON_TEXT(lambda *_: 0), None))
    note("null messages", k.chat(context, None, None, ON_TEXT(lambda *_: 0), None))
    stops = ON_TEXT(lambda *_: 1)
    note("on_text stops", k.generate(context, b'{"max_tokens": 4, "temp": 0}', stops, None))
    halts = ON_PROGRESS(lambda *_: 1)
    note("on_progress stops", k.read(context, b"more", 4, halts, None))
    note("loading stops", k.model_open(os.fsencode(model_path), None, halts, None))
    note("no file", k.model_open(b"/nowhere/model.gguf", None, None, None))
    note("model of a folder", k.model_open(os.fsencode(folder), None, None, None))
    note("threads", k.model_open(os.fsencode(model_path), b'{"threads": 10000}', None, None))
    cut = Path(folder, "cut.gguf")
    cut.write_bytes(Path(model_path).read_bytes()[:5000])
    note("truncated file", k.model_open(os.fsencode(cut), None, None, None))
    # Each in a file of its own: pages of an open file must not go away.
    unsupported, none = Path(folder, "unsupported.gguf"), Path(folder, "none.gguf")
    unsupported.write_bytes(Path(other_path).read_bytes().replace(b"llama", b"lxama"))
    note("unsupported file", k.model_open(os.fsencode(unsupported), None, None, None))
    none.write_bytes(b"no model at all")
    note("no gguf", k.model_open(os.fsencode(none), None, None, None))
    packs(k, note, model, other, f"{folder}/pack")
    note("stop", k.stop())
    note("after stop", k.read(context, b"a", 1, None, None))
    note("model after stop", k.model_open(None, None, None, None))
    note("start after stop", k.start_api(1, None))
    return found


def packs(k: Kvarn, note: Callable[[str, Any], None], model: int, other: int, pack: str) -> None:
    """A pack of another model, one in use, one that cannot be saved."""
    text = b"The miller kept forty-one white geese. " * 20
    name = os.fsencode(pack)
    assert k.pack_build(model, name, text, len(text), None, None, None) > 1, k.error()
    note("pack without a text", k.pack_build(model, name, b"", 0, None, None, None))
    note("pack of another text", k.pack_build(model, name, b"Geese.", 6, None, None, None))
    note("pack without a name", k.pack_info(None, None, 0))
    options = json.dumps({"pack": pack}).encode()
    note("pack of another model", k.context_new(other, options))
    store = json.dumps({"store": f"{pack}-store", "ctx": 4096}).encode()
    writer = k.context_new(model, store)
    assert writer, k.error()
    note("store in use", k.context_new(model, store))
    in_use = k.pack_build(model, f"{pack}-store".encode(), text, len(text), None, None, None)
    note("pack in use", in_use)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
    note("full disk", read(k, writer, "The miller kept geese. " * 100))
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    k.context_free(writer)


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](Kvarn(sys.argv[1]), *sys.argv[3:])))
