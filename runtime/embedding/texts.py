"""The token ids of texts and pairs of texts, and which of them are read together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..tokenizer.rendered import Rendered
from .pooling import EmbeddingError

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer


@dataclass(frozen=True)
class Ids:
    """The tokens of one text or pair; of `tokens`, those from `second` on are the second text's."""

    tokens: list[int]
    second: int

    @property
    def types(self) -> list[int]:
        """0 for each token of the first text, 1 for each of the second."""
        return [0] * self.second + [1] * (len(self.tokens) - self.second)


class TextIds:
    """Makes ids with the tokens that a model asks for around a text.

    n_ctx: the most tokens of a text. truncate: cut longer ones, before the token that ends them.
    template: what a pair is written into, at {query} and {document}.
    """

    def __init__(
        self, tokenizer: Tokenizer, n_ctx: int, truncate: bool, template: str | None = None
    ) -> None:
        self._tokenizer, self._n_ctx, self._truncate = tokenizer, n_ctx, truncate
        self._template = template

    def of_texts(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text. Raises `EmbeddingError` that names the first text which is empty,
        or too long unless they are cut."""
        _check(texts)
        ids = []
        for i, text in enumerate(texts):
            tokens = self._tokenizer.encode(text, bos=True)
            ids.append(self._fitted(Ids(tokens, len(tokens)), f"text {i + 1}"))
        return ids

    def of_pairs(self, query: str, texts: Sequence[str]) -> list[Ids]:
        """The ids of the query with each text. Raises what `of_texts` raises."""
        _check(texts)
        if not query.strip():
            raise EmbeddingError("the query is empty, expected a text")
        if self._template is not None:
            return [self._filled(query, text, i + 1) for i, text in enumerate(texts)]
        tokenizer = self._tokenizer
        first = tokenizer.encode(query, bos=True)
        sep = tokenizer.roles.get("sep")
        if tokenizer.add_eos and tokenizer.add_sep and sep is not None:
            first.append(sep)
        made = []
        for i, text in enumerate(texts):
            second = tokenizer.encode(text, bos=True)
            if second[:1] == [tokenizer.bos_id]:
                second = second[1:]
            ids = Ids(first + second, len(first))
            made.append(self._fitted(ids, f"text {i + 1} with the query"))
        return made

    def _filled(self, query: str, text: str, number: int) -> Ids:
        """A pair in the template, whose control tokens count; of a long text, its beginning."""
        parts = re.split(r"\{(query|document)\}", self._template or "")

        def tokens_with(document: str) -> list[int]:
            filled = {"query": query, "document": document}
            pair = Rendered()  # what is added to it is quoted
            for i, part in enumerate(parts):
                pair = pair + (filled[part] if i % 2 else Rendered(part))
            return self._tokenizer.encode(pair, special=True)

        tokens = tokens_with(text)
        kept = self._tokenizer.encode(text) if self._truncate else []
        while kept and len(tokens) > self._n_ctx:
            del kept[-max(1, len(tokens) - self._n_ctx) :]
            tokens = tokens_with(self._tokenizer.decode(kept))
        if self._truncate and len(tokens) > self._n_ctx:
            raise self._no_room(len(tokens))
        return self._fitted(Ids(tokens, len(tokens)), f"text {number} with the query")

    def _no_room(self, n: int) -> EmbeddingError:
        return EmbeddingError(
            f"the query has {n:,} tokens, which leaves no room for a text: the model reads at most "
            f"{self._n_ctx:,}"
        )

    def _fitted(self, ids: Ids, name: str) -> Ids:
        tokens, n_ctx = ids.tokens, self._n_ctx
        if len(tokens) <= n_ctx:
            return ids
        if not self._truncate:
            raise EmbeddingError(
                f"{name} has {len(tokens):,} tokens, and the model reads at most {n_ctx:,}: "
                "shorten or split it, or have it cut (--truncate; truncate=True)"
            )
        if ids.second >= n_ctx - 1 and ids.second < len(tokens):
            raise self._no_room(ids.second)
        kept = shortened(tokens, n_ctx, self._tokenizer)
        return Ids(kept, min(ids.second, len(kept)))


def shortened(tokens: list[int], n: int, tokenizer: Tokenizer) -> list[int]:
    """A text's first tokens, at most n of them; its closing token, if it has one, stays last."""
    end = tokenizer.roles.get("sep"), tokenizer.eos_id
    return tokens[: n - 1] + tokens[-1:] if len(tokens) > n and tokens[-1] in end else tokens[:n]


def _check(texts: Sequence[str]) -> None:
    if not texts:
        raise EmbeddingError("there are no texts, expected one or more")
    for i, text in enumerate(texts):
        if not text.strip():
            raise EmbeddingError(f"text {i + 1} is empty, expected words")


def passes_of(texts: Sequence[Ids], most_tokens: int) -> list[list[int]]:
    """The numbers of the texts that are read together, shortest first: as many as have
    `most_tokens`, or one that is longer."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].tokens))
    passes: list[list[int]] = []
    room = 0
    for i in order:
        n = len(texts[i].tokens)
        if n > room:
            passes.append([])
            room = max(most_tokens, n)
        passes[-1].append(i)
        room -= n
    return passes
