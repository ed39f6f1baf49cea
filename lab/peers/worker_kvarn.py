"""kvarn as a worker process, with the commands of `worker_llama.py`."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from kvarn.ops.attention.layout import SEGMENT, TileLayout
from kvarn.runtime.loading.load import load
from kvarn.runtime.memory import peak_resident_bytes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kvarn.runtime.context import Context


class Peer:
    """One model with one context; `n_read` tokens of a depth are read, the others filled."""

    def __init__(self, path: str, n_ctx: int, threads: int, kv_type: str, n_read: int) -> None:
        self.kv_type, self.n_read = kv_type, n_read
        self.model = load(path, threads=threads)  # imports the kernels, as the commands do
        from kvarn.runtime.store import Ram

        self.context: Context = self.model.context(n_ctx, store=Ram(kv_type, kv_type))
        self.rng = np.random.default_rng(0)

    def tokens(self, n_tokens: int) -> list[int]:
        ids: list[int] = self.rng.integers(0, self.model.config.n_vocab, n_tokens).tolist()
        return ids

    def fill(self, depth: int) -> None:
        """Bring the context to exactly `depth` tokens."""
        context = self.context
        context.truncate(min(depth, len(context.tokens)))
        read = min(depth, self.n_read) - len(context.tokens)
        if read > 0:
            context.prefill(self.tokens(read))
        if depth > len(context.tokens):
            context.fill(depth)
        context.store.pin(depth)  # where the next command begins


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


def facts(peer: Peer) -> dict[str, Any]:
    """The bytes that a token reads, and the size of the file."""
    config, weights = peer.model.config, peer.model.transformer.weights
    layout = TileLayout(config.head_dim, peer.kv_type, peer.kv_type)
    segment = config.n_kv_layers * layout.segment_bytes(config.n_kv_heads)
    return {
        "weight_bytes_per_token": weights.bytes_per_token,
        "kv_bytes_per_token": segment / SEGMENT,
        "file_bytes": peer.model.path.stat().st_size,
    }


def main() -> None:
    settings = json.loads(sys.argv[1])
    with _empty_kernels() if settings.pop("empty", False) else nullcontext():
        serve(Peer(**settings))


def _empty_kernels() -> AbstractContextManager[None]:
    from kvarn.ops.measure import empty_kernels

    return empty_kernels()


def serve(peer: Peer) -> None:
    """Answer commands until there are no more."""
    peer.context.prefill(peer.tokens(1))
    print(json.dumps(facts(peer)), flush=True)
    for line in sys.stdin:
        result = answer(peer, json.loads(line))
        result["peak_bytes"] = peak_resident_bytes()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
