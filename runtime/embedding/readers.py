"""What reads texts for an embedder: a text encoder, or a model that generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ...models.config.text_encoders import TextEncoderConfig
from ...models.text_encoders import Rows, TextEncoder, TextEncoderWeights
from ...ops.arrays import F32
from ..context.planning.request import ContextRequest
from ..engine import engine_method, on_engine
from .pooling import EmbeddingError, pool
from .texts import Ids, passes_of

if TYPE_CHECKING:
    from ..model import Model
    from ..tokenizer import Tokenizer


_PASS_TOKENS = 1024
"""Tokens that are read in one pass: enough for the kernels, few enough for caches."""


class Reader(Protocol):
    """Reads texts.

    n_ctx: the most tokens of a text. n_embd: the length of a vector. pair_template: what a query
    and a text are written into, at {query} and {document}; None: they stand one behind the other.
    """

    n_ctx: int
    n_embd: int
    tokenizer: Tokenizer
    pair_template: str | None

    def vectors(self, texts: Sequence[Ids], pooling: str) -> F32:
        """float32 (texts, n_embd): what `pooling` makes of each text's hidden states."""

    def scores(self, first: F32) -> F32:
        """float32 (texts, labels) of first hidden states; `EmbeddingError` where it has none."""


class EncoderReader:
    """A text encoder: reads several texts in one pass."""

    pair_template: str | None = None

    def __init__(
        self, config: TextEncoderConfig, weights: TextEncoderWeights, tokenizer: Tokenizer
    ) -> None:
        self.config, self._weights, self.tokenizer = config, weights, tokenizer
        self.n_ctx, self.n_embd = config.n_ctx_train, config.n_embd
        self._encoder: TextEncoder | None = None

    @engine_method
    def vectors(self, texts: Sequence[Ids], pooling: str) -> F32:
        out = np.empty((len(texts), self.n_embd), np.float32)
        longest = max(len(text.tokens) for text in texts)
        encoder = self._encoder_for(max(_PASS_TOKENS, longest))
        for numbers in passes_of(texts, _PASS_TOKENS):
            chosen = [texts[i] for i in numbers]
            lengths = [len(text.tokens) for text in chosen]
            rows = Rows(
                np.array([token for text in chosen for token in text.tokens], np.int32),
                np.array([kind for text in chosen for kind in text.types], np.int32),
                tuple(lengths),
            )
            if self.config.n_token_types == 1:  # both texts of a pair have it
                rows.types[:] = 0
            hidden = encoder.forward(rows)
            parts = np.split(hidden, np.cumsum(lengths)[:-1])
            out[numbers] = encoder.projected(np.stack([pool(part, pooling) for part in parts]))
        return out

    def scores(self, first: F32) -> F32:
        encoder = self._encoder_for(_PASS_TOKENS)
        if self._weights.classifier is None:
            raise EmbeddingError(
                "the model has no classifier (tensors cls), so it scores no texts: use a reranker"
            )
        parts = [first[i : i + _PASS_TOKENS] for i in range(0, len(first), _PASS_TOKENS)]
        return np.concatenate([on_engine(encoder.scores, part) for part in parts])

    def _encoder_for(self, max_rows: int) -> TextEncoder:
        if self._encoder is None or self._encoder.max_rows < max_rows:
            self._encoder = TextEncoder(self.config, self._weights, max_rows)
        return self._encoder


class TextPass:
    """Reads one text with a model that generates, in a context of its own, step by step. A context
    manager. Its methods run on the engine thread. Raises `EmbeddingError` for a text of no tokens.
    """

    def __init__(self, model: Model, tokens: list[int], pooling: str) -> None:
        if not tokens:
            raise EmbeddingError("a text has no tokens, expected words")
        self._tokens, self._pooling = tokens, pooling
        self._sum: NDArray[np.float64] = np.zeros(model.config.n_embd)
        self.context = model.open(ContextRequest(n_ctx=len(tokens)))
        self.context.reader.begin_prompt(len(tokens), anew=False)

    def __enter__(self) -> TextPass:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    @property
    def is_read(self) -> bool:
        """Whether all of it is read."""
        return len(self.context.reader.tokens) == len(self._tokens)

    def step(self, n_tokens: int) -> int:
        """Reads at most so many tokens more; how many it has read."""
        reader, pooling = self.context.reader, self._pooling
        n_before = len(reader.tokens)
        chunk = next(iter(reader.chunks(self._tokens[n_before:][:n_tokens])))
        hidden = reader.forward(chunk, 1 if pooling == "last" else None)
        if pooling == "mean":
            self._sum += hidden.sum(0, dtype=np.float64)
        elif pooling == "last" or not n_before:
            self._sum[:] = pool(hidden, pooling)
        return len(chunk)

    @property
    def vector(self) -> F32:
        """float32 (D,), once all is read: what `pooling` makes of the hidden states."""
        n = len(self._tokens) if self._pooling == "mean" else 1
        vector: F32 = (self._sum / n).astype(np.float32)
        return vector


class DecoderReader:
    """A model that generates: reads one text at a time, each token after those before it.

    classifier: of a reranker, float32 (labels, D): the rows of the output that mean "yes" and "no".
    """

    def __init__(
        self,
        model: Model,
        classifier: F32 | None = None,
        pair_template: str | None = None,
    ) -> None:
        self._model, self.tokenizer, self._classifier = model, model.tokenizer, classifier
        self.n_ctx, self.n_embd = model.config.n_ctx_train, model.config.n_embd
        self.pair_template = pair_template

    def vectors(self, texts: Sequence[Ids], pooling: str) -> F32:
        pooling = "last" if pooling == "rank" else pooling
        return np.stack([on_engine(self._vector, text.tokens, pooling) for text in texts])

    def _vector(self, tokens: list[int], pooling: str) -> F32:
        with TextPass(self._model, tokens, pooling) as text:
            while not text.is_read:
                text.step(len(tokens))
            return text.vector

    def scores(self, first: F32) -> F32:
        """The probability of the first label: float32 (texts, 1)."""
        if self._classifier is None:
            raise EmbeddingError("a model that generates scores no texts: use a reranker")
        logits = first.astype(np.float64) @ self._classifier.T
        weights = np.exp(logits - logits.max(1, keepdims=True))
        shares: F32 = (weights[:, :1] / weights.sum(1, keepdims=True)).astype(np.float32)
        return shares
