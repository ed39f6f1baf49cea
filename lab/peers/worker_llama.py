"""llama.cpp as a worker process: one JSON command per line in, one JSON answer per line out.

Uses the C API as llama-bench does: `llama_decode` on batches of random tokens, no sampling. The
commands are those of `worker_kvarn.py`; both workers live side by side and are asked in turn.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import time
from typing import Any

import llama_cpp
import numpy as np

from .llama_state import repeated

BATCH = 512


class Peer:
    """One model with one context; `flash` turns flash attention on. Up to `n_read` tokens of a
    depth are read; then their K and V are repeated."""

    def __init__(
        self, path: str, n_ctx: int, threads: int, flash: bool, kv_type: str, n_read: int
    ) -> None:
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, BATCH, BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
            if flash
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.type_k = params.type_v = {"f16": 1, "q4_0": 2, "q8_0": 8}[kv_type]
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make the context")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.rng = np.random.default_rng(0)
        self.n_tokens, self.n_read = 0, n_read

    def truncate(self, n_tokens: int) -> None:
        memory = llama_cpp.llama_get_memory(self.context)
        llama_cpp.llama_memory_seq_rm(memory, 0, n_tokens, -1)
        self.n_tokens = min(self.n_tokens, n_tokens)

    def read(self, n_tokens: int) -> None:
        """Read random tokens, in batches; the logits of the last one are computed."""
        ids = self.rng.integers(0, self.n_vocab, n_tokens).astype(np.int32)
        for at in range(0, n_tokens, BATCH):
            part = np.ascontiguousarray(ids[at : at + BATCH])
            pointer = part.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            batch = llama_cpp.llama_batch_get_one(pointer, len(part))
            if llama_cpp.llama_decode(self.context, batch):
                raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)
        self.n_tokens += n_tokens

    def fill(self, depth: int) -> None:
        """Bring the context to exactly `depth` tokens."""
        self.truncate(depth)
        if min(depth, self.n_read) > self.n_tokens:
            self.read(min(depth, self.n_read) - self.n_tokens)
        if depth > self.n_tokens:
            self._repeat(depth)

    def _repeat(self, depth: int) -> None:
        """Fill up to `depth` tokens by repeating the K and V in the context."""
        state = np.empty(llama_cpp.llama_state_seq_get_size(self.context, 0), np.uint8)
        pointer = ctypes.POINTER(ctypes.c_uint8)
        llama_cpp.llama_state_seq_get_data(
            self.context, state.ctypes.data_as(pointer), len(state), 0
        )
        longer = repeated(state, depth)
        if not llama_cpp.llama_state_seq_set_data(
            self.context, longer.ctypes.data_as(pointer), len(longer), 0
        ):
            raise RuntimeError(f"llama.cpp does not take a state of {depth} tokens")
        self.n_tokens = depth


def answer(peer: Peer, command: dict[str, Any]) -> dict[str, Any]:
    """Seconds of reading `n_prompt` tokens at once, or `n_gen` one by one, after `n_depth`."""
    peer.fill(command["n_depth"])
    began = time.perf_counter()
    if command["n_prompt"]:
        peer.read(command["n_prompt"])
    for _ in range(command["n_gen"]):
        peer.read(1)
    return {"seconds": time.perf_counter() - began}


def main() -> None:
    settings = json.loads(sys.argv[1])
    llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))
    peer = Peer(**settings)
    peer.read(1)
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        result = answer(peer, json.loads(line))
        result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps(result), flush=True)


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _silent(level: int, text: bytes, data: Any) -> None:
    """llama.cpp's log would drown the table."""


if __name__ == "__main__":
    main()
