"""Decoding one token of each of several contexts in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...models.together import NextToken, Together
from ...system.errors import KvarnError
from ..context.reading.prompt import ContextError, checked_ids
from ..context.reading.token_reader import TokenReader, stopping
from ..engine import on_engine
from ..stats import Clock

if TYPE_CHECKING:
    from ..context import Context
    from ..loading.loaded_model import LoadedModel

LEAST_ROWS = 8
"""Memory for a pass is made for so many contexts, or twice or four times as many, and so on."""


class NotSaved(KvarnError):
    """All contexts have read their tokens; those with these numbers could not save themselves."""

    def __init__(self, problems: dict[int, KvarnError]) -> None:
        self.problems = problems
        first = next(iter(problems.values()))
        super().__init__(f"{len(problems)} contexts could not be saved, the first one: {first}")


class Batch:
    """Decodes tokens of several contexts of one model together.

    The contexts may have different lengths, sizes, methods, KV types and packs, and they may change
    from call to call. Memory for a pass is made once, and again for more contexts than ever before.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._pass: Together | None = None
        self._most = 0

    def decode_together(self, contexts: Sequence[Context], tokens: Sequence[int]) -> None:
        """Read one generated token in each context, as `Context.decode` does without a draft.

        Then the logits of each are those of its token. Where the model is on the CPU, they have the
        bits that `Context.decode` gives, whatever the other contexts are. Costs one pass over the
        weights. A token that is next in its context's draft costs nothing.

        Raises `ContextError` for contexts of another model, the same one twice, ids outside the
        vocabulary and full contexts, before anything is read. Raises `Stopped` where a stop flag
        is set before the pass, or one that all contexts share while it runs, and what
        `Context.decode` raises: each context is then as it was, but for its draft (where tokens are
        evicted, see `TokenReader.forward`). Raises `NotSaved` after a pass that some contexts could
        not save.
        """
        clock, ids = Clock(), checked_ids(tokens)
        self._check(contexts, ids)
        pairs = list(zip(contexts, ids))
        ahead = [context for context, id in pairs if context.reads_ahead(id)]
        read = [(context.reader, id) for context, id in pairs if not context.reads_ahead(id)]
        if len(read) == 1:
            [(reader, id)] = read
            on_engine(reader.read_draft, id, ())
        elif read:
            on_engine(self._read, [reader for reader, _ in read], [id for _, id in read])
        for context in ahead:
            on_engine(context.reader.accept)
            context.stats.add_accepted()
        problems: dict[int, KvarnError] = {}
        for number, context in enumerate(contexts):
            try:
                context.decoded(clock)
            except KvarnError as problem:
                problems[number] = problem
        if problems:
            raise NotSaved(problems)

    def _check(self, contexts: Sequence[Context], ids: Sequence[int]) -> None:
        if len(contexts) != len(ids):
            raise ContextError(f"{len(contexts)} contexts and {len(ids)} tokens, expected one each")
        if len({id(context) for context in contexts}) < len(contexts):
            raise ContextError(
                "a context stands twice among those to decode: it has one next token"
            )
        for context, token in zip(contexts, ids):
            if context.model is not self._model:
                raise ContextError("contexts of different models cannot be decoded together")
            context.reader.check([token])

    def _read(self, readers: list[TokenReader], ids: list[int]) -> None:
        """One pass, on the engine's thread."""
        together = self._together(len(ids))
        for reader in readers:
            reader.get_ready()
        begun: list[TokenReader] = []
        flags = [reader.stop_flag for reader in readers]
        with stopping(flags, all(reader.cache.keeps_all for reader in readers)):
            try:
                rows = []
                for reader, token in zip(readers, ids):
                    begun.append(reader)
                    attention = reader.begin(1, prompt=False)
                    n, n_ctx = len(reader.tokens), reader.cache.most_tokens
                    rows.append(NextToken(token, n, attention, n_ctx))
                device, n_vocab = together.device, together.config.n_vocab
                result = together.read(rows)
                logits = device.memory((len(rows), n_vocab), np.float32)
                together.logits(result, logits)
                hidden, of_rows = device.get(result), device.get(logits)
            except BaseException:
                for reader in begun:
                    reader.give_up()
                raise
        for row, (reader, token) in enumerate(zip(readers, ids)):
            reader.end([token], hidden[row], prompt=False)
            reader.logits = of_rows[row]

    def _together(self, n: int) -> Together:
        """The pass, with memory for n rows."""
        if self._pass is None or n > self._most:
            self._most = max(LEAST_ROWS, 1 << (n - 1).bit_length())
            transformer = self._model.transformer
            self._pass = Together(transformer.config, transformer.weights, self._most)
        return self._pass
