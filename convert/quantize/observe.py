"""Collects an importance matrix: the squared inputs of every matrix while a text is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...models.workspace import Routed
from ...ops.arrays import F64, I64
from ...ops.device import Array
from ...runtime.model import Model
from ..errors import ConvertError
from .imatrix import write_imatrix

_LEAST_TOKENS = 16  # llama.cpp leaves smaller batches out, but for experts


class Observer:
    """Sums of squares of the inputs of each matrix in a block, by name of tensor: of experts' a row
    for each expert."""

    def __init__(self, model: Model, n_ctx: int) -> None:
        self._model, self._n_ctx = model, n_ctx
        self._sums: dict[str, F64] = {}
        self._counts: dict[str, I64] = {}
        self.n_chunks = 0

    @property
    def unseen(self) -> tuple[int, int]:
        """Of how many experts' matrices there were no inputs, and how many experts' there are."""
        counts = [count for count in self._counts.values() if len(count) > 1]
        return sum(int((count == 0).sum()) for count in counts), sum(map(len, counts))

    def read(self, ids: list[int], max_chunks: int | None = None) -> Iterator[tuple[int, int]]:
        """Read `ids` in chunks of `n_ctx` tokens, each from an empty context; yield (chunks read,
        chunks in all) after each. The first token of a chunk is replaced by BOS where the model
        wants one. Raises `ConvertError` for fewer tokens than a chunk has."""
        chunks = len(ids) // self._n_ctx
        if not chunks:
            raise ConvertError(
                f"the text has {len(ids):,} tokens, less than one piece of {self._n_ctx:,}: use a"
                " longer text or a smaller --ctx"
            )
        chunks = min(chunks, max_chunks or chunks)
        tokenizer = self._model.tokenizer
        bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
        context = self._model.context(self._n_ctx)
        with self._model.transformer.watch(self.see):
            for chunk in range(chunks):
                piece = ids[chunk * self._n_ctx : (chunk + 1) * self._n_ctx]
                context.truncate(0)
                context.prefill(bos + piece[len(bos) :])
                self.n_chunks += 1
                yield self.n_chunks, chunks

    def save(self, path: Path, datasets: list[str]) -> None:
        """Write the sums. Raises `ConvertError` for sums that are not finite."""
        for name, sums in self._sums.items():
            if not np.isfinite(sums).all():
                raise ConvertError(
                    f"the inputs of {name} are not finite: the model is damaged, or overflows"
                )
        write_imatrix(path, self._sums, self._counts, datasets, self.n_chunks, self._n_ctx)

    def see(self, inputs: Array, name: str, routed: Routed | None) -> None:
        """Add the inputs of a matrix, or of experts' matrices; a `models.workspace.Watcher`."""
        # The parts of a matrix that holds several, NAME[0], NAME[1], …, have the same inputs.
        name, _, part = name.partition("[")
        few = routed is None and len(inputs) < _LEAST_TOKENS
        if few or not name.startswith("blk.") or part not in ("", "0]"):
            return
        x = self._model.transformer.device.get(inputs)
        if name not in self._sums:
            n = 1 if routed is None else routed.n_experts
            self._sums[name] = np.zeros((n, x.shape[1]))
            self._counts[name] = np.zeros(n, np.int64)
        sums, counts = self._sums[name], self._counts[name]
        if routed is None:
            sums[0] += np.square(x).sum(axis=0, dtype=np.float64)
            counts[0] += len(x)
            return
        for e in np.unique(routed.ids):
            rows = x[routed.ids == e]
            sums[e] += np.square(rows).sum(axis=0, dtype=np.float64)
            counts[e] += len(rows)
