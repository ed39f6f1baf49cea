"""Vectors of texts, and scores of texts for a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...ops.arrays import F32
from .pooling import EmbeddingError
from .texts import Ids, TextIds

if TYPE_CHECKING:
    from .readers import Reader


class Embedder:
    """A model that turns texts into vectors, or scores them; made by `kvarn.load_embedder`.

    name: the model's. pooling: "mean", "cls", "last" or "rank". n_embd: the length of a vector.
    n_ctx: the most tokens of a text.
    """

    def __init__(self, reader: Reader, pooling: str, name: str) -> None:
        self.name, self.pooling = name, pooling
        self.n_ctx, self.n_embd, self.tokenizer = reader.n_ctx, reader.n_embd, reader.tokenizer
        self._reader = reader

    def embed(self, texts: Sequence[str] | str, *, truncate: bool = False) -> F32:
        """A vector of norm 1 for each text: float32 (texts, n_embd). The product of two is their
        cosine.

        truncate: cut texts that have more tokens than the model reads. Raises `EmbeddingError` for
        no texts, an empty one, one that is too long, and a model that only scores texts.
        """
        ids = TextIds(self.tokenizer, self.n_ctx, truncate)
        return self.embed_ids(ids.of_texts([texts] if isinstance(texts, str) else texts))

    def embed_ids(self, texts: Sequence[Ids]) -> F32:
        """`embed` of texts that are ids already."""
        if self.pooling == "rank":
            raise EmbeddingError(
                f"{self.name} scores texts for a query and makes no vectors: use `kvarn rerank` "
                "(rank), or another pooling"
            )
        return normalised(self._reader.vectors(texts, self.pooling))

    def rank(self, query: str, texts: Sequence[str], *, truncate: bool = False) -> F32:
        """How well each text answers the query: float32 (texts,), the more the better; what the
        model's classifier gives, without a sigmoid, or the probability of "yes" where a model that
        generates was trained to say it. Only of models whose pooling is "rank".

        Raises `EmbeddingError` as `embed`, and for a model that has no single score.
        """
        if self.pooling != "rank":
            raise EmbeddingError(
                f"{self.name} makes vectors and scores no texts (its pooling is {self.pooling}): "
                "compare vectors (`kvarn embed --query`), or use a reranker"
            )
        template = self._reader.pair_template
        ids = TextIds(self.tokenizer, self.n_ctx, truncate, template).of_pairs(query, texts)
        scores = self._reader.scores(self._reader.vectors(ids, self.pooling))
        if scores.shape[1] != 1:
            raise EmbeddingError(
                f"{self.name} gives {scores.shape[1]} scores for each text, expected one"
            )
        return np.ascontiguousarray(scores[:, 0])


def normalised(vectors: F32) -> F32:
    """The vectors, each divided by its length; zeros stay."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    divided: F32 = (wide / np.where(lengths == 0, 1.0, lengths)).astype(np.float32)
    return divided
