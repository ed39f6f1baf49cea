"""llama.cpp as the oracle: logits of a token sequence, through llama-cpp-python's C bindings."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np

GGML_TYPE_F32 = 0


class Oracle:
    """One model in one context: F32 KV cache, no flash attention, one thread."""

    def __init__(self, context: llama_cpp.llama_context_p, n_vocab: int) -> None:
        self._context = context
        self._n_vocab = n_vocab
        self._n_tokens = 0

    def forward(self, ids: list[int]) -> np.ndarray:
        """Logits (T, V) of `ids` after what was read before."""
        self._read(ids)
        rows = [llama_cpp.llama_get_logits_ith(self._context, i) for i in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, (self._n_vocab,)).copy() for row in rows])

    def pooled(self, ids: list[int], n: int) -> np.ndarray:
        """The vector (n,) of one text, which the context forgets."""
        self._read(ids)
        self._n_tokens = 0
        if memory := llama_cpp.llama_get_memory(self._context):
            llama_cpp.llama_memory_clear(memory, True)
        vector = llama_cpp.llama_get_embeddings_seq(self._context, 0)
        return np.ctypeslib.as_array(vector, (n,)).copy()

    def _read(self, ids: list[int]) -> None:
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i] = token
            batch.pos[i] = self._n_tokens + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        status = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_batch_free(batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        self._n_tokens += len(ids)

    def greedy(self, prompt: list[int], n: int) -> tuple[list[int], np.ndarray]:
        """n greedy ids after the prompt, and the logits (n, V) they were chosen from."""
        ids, rows = [], []
        step = prompt
        for _ in range(n):
            rows.append(self.forward(step)[-1])
            ids.append(int(rows[-1].argmax()))
            step = ids[-1:]
        return ids, np.stack(rows)


@contextmanager
def oracle(path: Path, n_ctx: int, n_vocab: int, embeds: bool = False) -> Iterator[Oracle]:
    """Load a model file into llama.cpp. embeds: for `pooled`, as the file says."""
    silent = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
        lambda level, text, user: None
    )
    llama_cpp.llama_log_set(silent, ctypes.c_void_p())
    llama_cpp.llama_backend_init()
    model_params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_params)
    if not model:
        raise RuntimeError(f"llama.cpp refuses {path}")
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
    params.n_threads = params.n_threads_batch = 1
    params.embeddings = embeds
    params.type_k = params.type_v = GGML_TYPE_F32
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, params)
    try:
        yield Oracle(context, n_vocab)
    finally:
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)
        _ = silent  # llama.cpp may have called it until here
        llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p())
