"""A program that calls libkvarn through ctypes, for tests: `python host.py LIBRARY SCRIPT ARGS`.

SCRIPT is a function below; what it returns is printed as JSON.
"""

import ctypes
import json
import os
import sys
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
