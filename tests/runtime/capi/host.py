"""A program that calls libkvarn through ctypes, for tests: `python host.py LIBRARY SCRIPT ARGS`.

SCRIPT is a function below; what it returns is printed as JSON.
"""

import ctypes
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

P, L, Z, S, I = ctypes.c_void_p, ctypes.c_long, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_int
ON_TEXT = ctypes.CFUNCTYPE(I, P, Z, P)
ON_PROGRESS = ctypes.CFUNCTYPE(I, L, L, P)
ON_LINE = ctypes.CFUNCTYPE(None, S, P)
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "start_api": (L, [I, S]),
    "stop": (L, []),
    "error": (S, []),
    "on_log": (L, [P, P]),
    "model_open": (P, [S, S, P, P]),
    "model_free": (L, [P]),
    "model_info": (L, [P, P, Z]),
    "tokenize": (L, [P, P, Z, I, P, Z]),
    "detokenize": (L, [P, P, Z, I, P, Z]),
    "context_new": (P, [P, S]),
    "context_free": (L, [P]),
    "context_info": (L, [P, P, Z]),
    "read": (L, [P, P, Z, P, P]),
    "read_ids": (L, [P, P, Z, P, P]),
    "truncate": (L, [P, Z]),
    "save": (L, [P]),
    "logits": (L, [P, P, Z]),
    "generate": (L, [P, S, P, P]),
    "chat": (L, [P, S, S, P, P]),
    "cancel": (L, [P]),
    "pack_build": (L, [P, S, P, Z, S, P, P]),
    "pack_info": (L, [S, P, Z]),
}


class Kvarn:
    """The functions of the library, without their prefix."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, f"kvarn_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def said(self, result: Any) -> tuple[int, str]:
        """A result, a handle as 1 or 0, and what kvarn_error says of it."""
        return (0 if result is None else min(int(result), 1)), self.error().decode()


def read(k: Kvarn, context: int, text: str) -> int:
    raw = text.encode()
    return int(k.read(context, raw, len(raw), None, None))


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


def collecting() -> tuple[list[bytes], Any]:
    """A list, and the callback that puts the pieces of an answer into it."""
    pieces: list[bytes] = []

    def on_text(text: int, n: int, _: object) -> int:
        pieces.append(ctypes.string_at(text, n))
        return 0

    return pieces, ON_TEXT(on_text)


def answers(k: Kvarn, pack: str, *prompts: str) -> list[str]:
    """Greedy texts of the default model after each prompt, and after the pack and each prompt."""
    assert k.start_api(1, None) == 1, k.error()
    model = k.model_open(None, None, None, None)
    found = []
    for options in ({"ctx": 512}, {"pack": pack}):
        for prompt in prompts:
            context = k.context_new(model, json.dumps(options).encode())
            assert context, k.error()
            assert read(k, context, prompt) > 0, k.error()
            pieces, on_text = collecting()
            made = k.generate(context, b'{"max_tokens": 24, "temp": 0}', on_text, None)
            assert made == 25, k.error()
            found.append(b"".join(pieces).decode())
            assert k.context_free(context) == 1, k.error()
    return found


def drafts(k: Kvarn, small: str) -> list[tuple[str, float]]:
    """Greedy texts of one prompt, without a draft and with each, and seconds of drafts so far."""
    assert k.start_api(1, None) == 1, k.error()
    model = k.model_open(None, None, None, None)
    context = k.context_new(model, b'{"ctx": 512}')
    n = read(k, context, "The ship sank. The ship sank. The ship") - 1
    buffer, found = ctypes.create_string_buffer(10000), []
    for asked in (
        {"draft": False},
        {"draft": True},
        {"draft": "ngram", "draft_max": 3, "draft_min_match": 1},
        *[{"draft": small, "draft_p_min": 0}] * 2,
    ):
        pieces, on_text = collecting()
        options = json.dumps({"max_tokens": 24, "temp": 0, **asked}).encode()
        assert k.truncate(context, n - 1) > 0 and read(k, context, " ship") > 0, k.error()
        assert k.generate(context, options, on_text, None) == 25, k.error()
        assert k.context_info(context, buffer, 10000) > 1, k.error()
        facts = json.loads(buffer.value)
        found.append((b"".join(pieces).decode(), facts["draft_seconds"]))
    return found


def turns(k: Kvarn) -> dict[str, Any]:
    """Two turns of a chat after a text that was read: what the context holds after each call."""
    assert k.start_api(1, None) == 1, k.error()
    model = k.model_open(None, None, None, None)
    context = k.context_new(model, b'{"ctx": 512}')
    held = [read(k, context, "The miller kept geese.") - 1]
    messages: list[dict[str, str]] = [{"role": "system", "content": "Be short."}]
    reads, made = [], []
    buffer = ctypes.create_string_buffer(10000)
    for question in ("How many geese?", "Of what colour?"):
        pieces, on_text = collecting()
        messages.append({"role": "user", "content": question})
        options = b'{"max_tokens": 8, "temp": 0}'
        made.append(k.chat(context, json.dumps(messages).encode(), options, on_text, None) - 1)
        messages.append({"role": "assistant", "content": b"".join(pieces).decode()})
        assert k.context_info(context, buffer, 10000) > 1, k.error()
        facts = json.loads(buffer.value)
        held.append(facts["tokens"])
        reads.append(facts["prefilled_tokens"])
    return {"held": held, "reads": reads, "made": made, "messages": messages}


def sizes(k: Kvarn, text: str) -> dict[str, Any]:
    """Sizes and contents of buffers, of the ids and the logits of a text."""
    assert k.start_api(1, None) == 1, k.error()
    model = k.model_open(None, None, None, None)
    lines: list[str] = []
    listener = ON_LINE(lambda line, _: lines.append(line.decode()))
    assert k.on_log(listener, None) == 1
    assert k.context_new(model, b'{"ctx": 100, "keep": "streaming", "keep_budget": 200}')
    assert k.on_log(None, None) == 1
    assert k.context_new(model, b'{"ctx": 100, "keep": "streaming", "keep_budget": 200}')
    raw = text.encode()
    needed = k.tokenize(model, raw, len(raw), 1, None, 0)
    ids = (ctypes.c_int32 * needed)(*[7] * needed)
    short = k.tokenize(model, raw, len(raw), 1, ids, needed - 1)
    untouched = list(ids) == [7] * needed
    k.tokenize(model, raw, len(raw), 1, ids, needed)
    n_text = k.detokenize(model, ids, needed - 1, 0, None, 0)
    back = ctypes.create_string_buffer(n_text)
    k.detokenize(model, ids, needed - 1, 0, back, n_text)
    context = k.context_new(model, b'{"ctx": 512, "method": "topk", "budget": 64}')
    assert k.read_ids(context, ids, needed - 1, None, None) == needed, k.error()
    n_vocab = k.logits(context, None, 0)
    logits = (ctypes.c_float * n_vocab)()
    k.logits(context, logits, n_vocab)
    return {
        "needed": needed, "short": short, "untouched": untouched, "ids": list(ids),
        "back": back.value.decode(), "n_text": n_text, "logits": list(logits),
        "empty": k.tokenize(model, b"", 0, 0, None, 0), "lines": lines,
    }  # fmt: skip


def spellings(k: Kvarn, text: str) -> dict[str, Any]:
    """Tokens that `read` makes of a text, and its ids with and without KVARN_SPECIAL."""
    assert k.start_api(1, None) == 1, k.error()
    model = k.model_open(None, None, None, None)
    context, raw = k.context_new(model, b'{"ctx": 512}'), text.encode()
    found: dict[str, Any] = {"read": read(k, context, text) - 1}
    for name, flags in (("plain", 1), ("special", 3)):
        ids = (ctypes.c_int32 * 100)()
        n = k.tokenize(model, raw, len(raw), flags, ids, 100)
        found[name] = list(ids)[: n - 1]
    return found


def contexts(k: Kvarn, model_path: str, requests: str) -> list[dict[str, Any] | str]:
    """What kvarn_context_info says of a context for each of the requests in a JSON array, or the
    error. "device" is an option of the model."""
    assert k.start_api(1, None) == 1, k.error()
    found: list[dict[str, Any] | str] = []
    buffer = ctypes.create_string_buffer(10000)
    for words in json.loads(requests):
        device = {name: words.pop(name) for name in ("device",) if name in words}
        model = k.model_open(os.fsencode(model_path), json.dumps(device).encode(), None, None)
        assert model, k.error()
        context = k.context_new(model, json.dumps(words).encode())
        if context is None:
            found.append(k.error().decode())
        else:
            assert k.context_info(context, buffer, 10000) > 1, k.error()
            found.append(json.loads(buffer.value))
            assert k.context_free(context) == 1, k.error()
        assert k.model_free(model) == 1, k.error()
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[2]](Kvarn(sys.argv[1]), *sys.argv[3:])))
