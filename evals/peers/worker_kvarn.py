"""kvarn as a worker process, with the commands of `worker_llama.py`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from ...runtime.context import Context
from ...runtime.load import load
from ...runtime.memory import peak_resident_bytes
from ...runtime.store import Ram


class Peer:
    """One model with one context; exact attention has no flash to turn on or off."""

    def __init__(self, path: str, n_ctx: int, threads: int, kv_type: str) -> None:
        began = time.perf_counter()
        self.model = load(path, threads=threads)
        self.context: Context = self.model.context(n_ctx, store=Ram(kv_type, kv_type))
        self.rng = np.random.default_rng(0)
        self.load_seconds = time.perf_counter() - began

    def tokens(self, n_tokens: int) -> list[int]:
        ids: list[int] = self.rng.integers(0, self.model.config.n_vocab, n_tokens).tolist()
        return ids

    def fill(self, depth: int) -> None:
        """Have exactly `depth` tokens in the context."""
        context = self.context
        context.truncate(min(depth, len(context.tokens)))
        if depth > len(context.tokens):
            context.prefill(self.tokens(depth - len(context.tokens)))


def answer(peer: Peer, command: dict[str, Any]) -> dict[str, Any]:
    """Seconds of reading `n_prompt` tokens at once, or `n_gen` one by one, after `n_depth`."""
    peer.fill(command["n_depth"])
    ids = peer.tokens(command["n_prompt"] + command["n_gen"])
    began = time.perf_counter()
    if command["n_prompt"]:
        peer.context.prefill(ids)
    else:
        for token in ids:
            peer.context.decode(token)
    return {"seconds": time.perf_counter() - began}


def main() -> None:
    settings = json.loads(sys.argv[1])
    peer = Peer(**settings)
    peer.context.prefill(peer.tokens(1))
    print(json.dumps({"load_seconds": peer.load_seconds}), flush=True)
    for line in sys.stdin:
        result = answer(peer, json.loads(line))
        result["peak_bytes"] = peak_resident_bytes()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
