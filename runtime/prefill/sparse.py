"""prefill `sparse`: each token of a prompt chooses which of the distant tokens it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..attend import Attend, BoundAttend, Hash
from ..attend.encoders.sidecar import own_encoders
from ..attend.hash import check_rerank
from ..attend.indexes.sketches import NAME
from ..loading.model_info import ModelInfo
from ..methods import option
from ..store import KVStore
from ..store.facts import PrefillFacts
from .base import Prefill, PrefillError
from .indexes import RowIndex, RowSignatures, RowSketches

INDEXES = ("hash", "sketch")
TAILS = ("means", "none")
LEAST_K = 16
RERANK = 2
"""Candidates for each token that is wanted, by signatures: docs/internals/performance.md."""


@dataclass(frozen=True)
class SparsePrefill(Prefill):
    """softmax over the first 128 tokens, the newest ones, and what each query head chooses.

    The newest tokens of a row of the chunk that begins at c are those from
    floor(c / 1,024) · 1,024 - 128 on. Of the tokens between, each query head of a row chooses k, as
    `attend` methods do for a generated token; the query heads of a KV head read what any of them
    chose. A chunk that begins before `from_`, or has at most k tokens between, is read exactly.

    index: by what a row chooses; "hash": signatures (`Hash`), "sketch": estimates of q·k, and the
    best of these exactly (`TopK`); None: hash where the model has learned encoders, else sketch.
    rerank: of `Hash`, with index hash; None: 2.
    tail: what the tokens that were not chosen count: "means", for each block of 32 similar keys as
    many tokens at its mean key, with the mean value, as were not chosen of it (see `TopK`); "none",
    nothing. probe: so many rows apart, a row is also read exactly, to measure the softmax's mass
    that was read and the error of the output, tail included.
    """

    name: ClassVar[str] = "sparse"
    summary: ClassVar[str] = (
        "each token reads the first and the newest ones, and those between that it chooses"
    )
    needs_all_tokens: ClassVar[bool] = True

    k: int = option(512, "each query head of a token chooses N tokens", int)
    index: str | None = option(
        None,
        "by what they are chosen: signatures or sketches of keys (default: hash where the model "
        "has learned encoders, else sketch)",
        choices=INDEXES,
    )
    tail: str = option(
        "means",
        "what is not chosen counts: by the means of blocks of similar keys, or not at all",
        choices=TAILS,
    )
    from_: int = option(8192, "the first N tokens of a context are read exactly", int)
    probe: int = option(
        0, "every N tokens measure the softmax mass that was read and the error of the output", int
    )
    rerank: int | None = option(
        None,
        "find N times as many candidates by signatures, and take the best by their keys (default: "
        "2, as sketches have)",
        int,
    )

    def __post_init__(self) -> None:
        self.check_fields(PrefillError, "sparse prefill: ")
        if self.k < LEAST_K:
            raise PrefillError(
                f"sparse prefill cannot choose {self.k} tokens for each query head: expected "
                f"{LEAST_K} or more"
            )
        if self.rerank is not None:
            check_rerank(self.rerank, "sparse prefill", PrefillError)
            if self.index == "sketch":
                raise PrefillError(
                    "rerank of sparse prefill is for index hash: sketches always have twice as "
                    "many candidates as are wanted"
                )

    @classmethod
    def variants(cls) -> tuple[SparsePrefill, ...]:
        return (*(cls(index=index) for index in INDEXES), cls(index="hash", rerank=1))

    def shortened(self) -> SparsePrefill:
        rerank = self.rerank and min(self.rerank, RERANK)
        return replace(self, k=LEAST_K, from_=0, probe=min(self.probe, 1), rerank=rerank)

    def resolved(self, model: ModelInfo) -> SparsePrefill:
        index = self.index
        if index is None:
            signs = self.rerank is not None or model.once(own_encoders) is not None
            index = "hash" if signs else "sketch"
        if index == "sketch":
            return replace(self, index=index)
        return replace(self, index=index, rerank=self.rerank or RERANK)

    def is_exact_within(self, n_tokens: int) -> bool:
        return n_tokens <= self.from_

    def facts(self, model: ModelInfo) -> PrefillFacts:
        method = self.resolved(model)
        assert method.index is not None
        column = NAME if method.index == "sketch" else Hash().encoder_or_simhash(model)[0].name
        return PrefillFacts(
            self.name,
            method.index,
            self.k,
            self.from_,
            self.tail != "none",
            column,
            method.rerank or 1,
        )

    def wrap(self, attend: Attend) -> Attend:
        return _SparsePrompts(attend, self)


@dataclass(frozen=True)
class _SparsePrompts(Attend):
    """`attend` for generated tokens, `prefill` for prompts."""

    name: ClassVar[str] = "sparse prefill"
    summary: ClassVar[str] = SparsePrefill.summary

    attend: Attend
    prefill: SparsePrefill

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        from .attention import SparsePrompts

        bound = self.attend.open(model, store, n_ctx)
        index: RowIndex
        method = self.prefill.resolved(model)
        if method.index == "sketch":
            index = RowSketches(model, store)
        else:
            encoder, notice = Hash().encoder_or_simhash(model)
            index = RowSignatures(model.config, store, encoder, notice, method.rerank or RERANK)
        return SparsePrompts(bound, method, model.config, store, n_ctx, index)
