"""prefill `blocks`: a prompt is cut into blocks, and each is read apart from the others."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...ops.arrays import F32
from ...ops.attention.arguments import Dense
from ...ops.attention.prefill.listed import ListedScratch, ReadRows, listed_attention
from ...system.spelling import spelt
from ...system.values import count
from ..attend import Attend, BoundAttend
from ..attend.sparse import Sparse
from ..methods import option
from ..store.facts import PrefillFacts
from .base import CHUNK, Prefill, PrefillError
from .exact import Exact
from .prompts import SINKS, PromptAttend
from .sparse import SparsePrefill

if TYPE_CHECKING:
    from ...models.config import ModelConfig
    from ..attend import LayerView
    from ..keep import Keep
    from ..loading.model_info import ModelInfo
    from ..store import KVStore


RESTS = ("exact", "sparse", "block")
WINDOWS = ("across", "stop")
TO_THE_END = "blocks to the end"
"""What packs call the mode whose rest is a block."""


@dataclass(frozen=True)
class BlocksPrefill(Prefill):
    """softmax(scale · q Kᵀ) V over the first 128 tokens and those of the block of `size` tokens.

    Token p of a prompt, p < until, reads tokens 0 … 127 and floor(p / size) · size … p; those of
    the first block read all before them. Tokens from `until` on read all. Layers with a window read
    it. So the time of a token does not grow beyond the first block. Source: phase 1 of Star
    Attention (arXiv 2411.17116), with sinks in place of its anchor block.

    until: rounded down to whole blocks; None: the number of tokens of the prompt that the context
    begins with. A pack records it, and what is read later goes on so. rest: how tokens from `until`
    on read all: "exact", or "sparse" as `sparse` says, beyond the first block; "block": `until` is
    not rounded, so the last tokens before it are one more block, and others read all exactly.
    windows: "across" the borders of blocks, or "stop" there: so no block needs the one before it.
    """

    name: ClassVar[str] = "blocks"
    summary: ClassVar[str] = (
        "each token reads the first ones and those of its block; what follows the last whole block "
        "reads all"
    )
    short: ClassVar[str] = "size"
    needs_all_tokens: ClassVar[bool] = True

    size: int = option(
        16384,
        "a block has N tokens; --prefill blocks:N is the same",
        count,
    )
    until: int | None = option(
        None, "the first N tokens are read in blocks (default: the prompt that comes first)", int
    )
    rest: str = option("exact", "how what follows the last whole block is read", choices=RESTS)
    sparse: SparsePrefill = SparsePrefill()  # noqa: RUF009 - frozen
    windows: str = option(
        "across", "whether windows of layers reach across borders of blocks", choices=WINDOWS
    )

    def __post_init__(self) -> None:
        self.check_fields(PrefillError, "prefill blocks: ")
        if self.size < CHUNK or self.size % CHUNK:
            raise PrefillError(
                f"prefill blocks:{self.size}: expected a multiple of {CHUNK} tokens, from "
                f"{CHUNK} on"
            )

    @classmethod
    def variants(cls) -> tuple[BlocksPrefill, ...]:
        return (cls(),)  # `sparse` has its own

    def shortened(self) -> BlocksPrefill:
        until = 0 if self.rest == "sparse" else 4 * CHUNK
        return replace(self, size=CHUNK, until=until, sparse=self.sparse.shortened())

    def check(self, attend: Attend, keep: Keep, n_ctx: int) -> None:
        super().check(attend, keep, n_ctx)
        if isinstance(attend, Sparse):
            self._check_window(attend.window, spelt("window"))

    def resolved(self, model: ModelInfo) -> BlocksPrefill:
        window = max(layer.window or 0 for layer in model.config.kv_layers)
        self._check_window(window, f"layers of {model.name}")
        return self if window else replace(self, windows="across")

    def _check_window(self, window: int, whose: str) -> None:
        if self.size < window:
            raise PrefillError(
                f"{spelt('prefill')} {self.name}: a block has {self.size:,} tokens, fewer than the "
                f"window of {window:,} ({whose}): use {spelt('prefill')} {self.name}:"
                f"{-(-window // CHUNK) * CHUNK}"
            )

    def for_prompt(self, n_tokens: int) -> BlocksPrefill:
        return replace(self, until=self.n_apart(n_tokens))

    def following(self) -> Prefill:
        return self._of_rest() if self.rest == "sparse" else Exact()

    def _of_rest(self) -> SparsePrefill:
        return replace(self.sparse, from_=self.size)

    def n_apart(self, n_tokens: int) -> int:
        """How many tokens are read in blocks, where the first prompt has `n_tokens`."""
        until = n_tokens if self.until is None else self.until
        return until if self.rest == "block" else until // self.size * self.size

    def facts(self, model: ModelInfo) -> PrefillFacts:
        until, windows = self.n_apart(self.until or 0), self.windows.replace("across", "")
        if self.rest != "sparse":
            mode = TO_THE_END if self.rest == "block" else self.name
            return PrefillFacts(mode, "", self.size, 0, False, "", 1, self.size, until, windows)
        facts = self._of_rest().facts(model)
        return replace(facts, mode=self.name, size=self.size, until=until, windows=windows)

    def wrap(self, attend: Attend) -> Attend:
        rest = self._of_rest().wrap(attend) if self.rest == "sparse" else attend
        return _BlockPrompts(rest, self)


@dataclass(frozen=True)
class _BlockPrompts(Attend):
    """`prefill` for prompts in blocks, `attend` for all else."""

    name: ClassVar[str] = "blocks prefill"
    summary: ClassVar[str] = BlocksPrefill.summary

    attend: Attend
    prefill: BlocksPrefill

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        return BlockPrompts(
            self.attend.open(model, store, n_ctx), self.prefill, model.config, store
        )


class BlockPrompts(PromptAttend):
    """Reads prompts in blocks, and all else by `inner`. The store knows where the blocks end."""

    def __init__(
        self, inner: BoundAttend, prefill: BlocksPrefill, config: ModelConfig, store: KVStore
    ) -> None:
        super().__init__(inner, len(config.attention_layers))
        self._prefill, self._store, self._counts_all = prefill, store, not inner.prompt_reads
        self._scratches: dict[Hashable, ListedScratch] = {}  # heads of layers may differ

    def begin_prompt(self, n_tokens: int) -> None:
        self._store.n_apart = self._prefill.n_apart(n_tokens)

    def n_reusable(self, n_shared: int, n_tokens: int) -> int:
        """The first block is read alike wherever blocks end."""
        one, other = self._store.n_apart or 0, self._prefill.n_apart(n_tokens)
        return n_shared if one == other else min(n_shared, max(min(one, other), self._prefill.size))

    def attend_prompt(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        """Rows of one chunk, which lies in one block, with what follows the last."""
        start, reads = int(start), self.prompt_reads[layer.number]
        block, window = start // self._prefill.size * self._prefill.size, layer.config.window
        n_apart = (self._store.n_apart or 0) - start
        if window is not None:  # from block + window on, it lies in the block
            stops = self._prefill.windows == "stop"
            n_apart = min(n_apart, block + window - start) if stops else 0
        if block and 0 < n_apart < len(q):
            self.attend_prompt(layer, q[:n_apart], start, out[:n_apart])
            self.attend_prompt(layer, q[n_apart:], start + n_apart, out[n_apart:])
            return
        if not block or n_apart <= 0:
            self._inner.attend_prompt(layer, q, start, out)
            reads.full_steps += len(q) * self._counts_all
            return
        began, n = time.perf_counter(), len(q)
        sinks, n_kv_heads = SINKS if window is None else 0, layer.config.n_kv_heads
        listed_attention(
            q,
            ReadRows(
                np.zeros((n, n_kv_heads, 1), np.uint32),
                np.zeros((n, n_kv_heads), np.int64),
                Dense(sinks, block, start),
            ),
            layer.store.segments(layer.index),
            out,
            softmax=layer.softmax,
            scratch=self._scratch(layer),
        )
        if window is not None:
            reads.full_steps += n * self._counts_all
            return
        stored = n * start + n * (n + 1) // 2
        reads.steps += n
        reads.stored_tokens += stored * self._store.n_kv_heads
        reads.attended_tokens += (stored - n * (block - SINKS)) * self._store.n_kv_heads
        reads.attention_seconds += time.perf_counter() - began

    def _scratch(self, layer: LayerView) -> ListedScratch:
        layout = self._store.layout_of(layer.index)
        key = layer.config.n_heads, self._store.kv_heads_of(layer.index), layout
        if key not in self._scratches:
            self._scratches[key] = ListedScratch(*key)
        return self._scratches[key]
