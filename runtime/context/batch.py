"""Decoding tokens of several contexts in one pass."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ...jit.launch.launcher import stopping_at
from ...models.passes.batch import BatchTransformer, NextTokens
from ...system.errors import KvarnError
from ..engine import on_engine
from ..stats import Clock
from .reading.prompt import ContextError, checked_ids
from .reading.token_reader import TokenReader, stopping

if TYPE_CHECKING:
    from ..model import Model
    from . import Context

LEAST_ROWS = 8
"""Memory for a pass is made for so many tokens, or twice or four times as many, and so on."""
_never = ctypes.c_int64(0)


class SaveFailed(KvarnError):
    """All contexts have read their tokens; those with these numbers could not save themselves."""

    def __init__(self, problems: dict[int, KvarnError]) -> None:
        self.problems = problems
        first = next(iter(problems.values()))
        super().__init__(f"{len(problems)} contexts could not be saved, the first one: {first}")


class Batch:
    """Decodes tokens of several contexts of one model together.

    The contexts may have different lengths, sizes, methods, KV types and packs, and they may change
    from call to call. Memory for a pass is made once, and again for more tokens than ever before.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pass: BatchTransformer | None = None
        self._most = 0

    @property
    def can_pause(self) -> bool:
        """Whether prompts can pause for `decode_together`: on a GPU, rows of its passes do not have
        the bits that they have alone."""
        return self._model.transformer.device.least_rows > 1

    @contextmanager
    def pausing(self, work: Callable[[], None]) -> Iterator[None]:
        """In the block, which runs on the engine thread, passes of prompts pause twice in a layer
        and call `work`, if they can.

        There, contexts that are settled (`TokenReader.is_settled`) may decode in this batch, and be
        saved and closed. No other pass of the model may run. The prompt's stop flag and its clocks
        count nothing of it, and its bits stay the same.
        """

        def paused() -> None:
            with stopping_at(ctypes.addressof(_never)), Clock.pause():
                work()

        if not self.can_pause:
            yield
            return
        with self._model.transformer.pauses.calling(paused):
            yield

    def decode_together(
        self,
        contexts: Sequence[Context],
        tokens: Sequence[int],
        drafts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Read one generated token in each context, and its draft, as `Context.decode` does.

        Then the logits of each are those of its token. Where the model is on the CPU, they have the
        bits that `Context.decode` gives, whatever the other contexts are. Costs one pass over the
        weights. A token that is next in its context's draft costs nothing. drafts: guesses of the
        tokens after each of `tokens`; None: there are none.

        Raises `ContextError` for contexts of another model, the same one twice, ids outside the
        vocabulary, full contexts and long drafts, before anything is read. Raises `Stopped` where a
        stop flag is set before the pass, or one that all contexts share while it runs, and what
        `Context.decode` raises: each context is then as it was, but for its draft (where tokens are
        evicted, see `TokenReader.forward`). Raises `SaveFailed` after a pass that some contexts
        could not save.
        """
        clock, ids = Clock(), checked_ids(tokens)
        guesses = [checked_ids(draft) for draft in drafts or [()] * len(ids)]
        self._check(contexts, ids, guesses)
        ahead = [context.reads_ahead(id) for context, id in zip(contexts, ids)]
        rows = [[id, *draft] for id, draft in zip(ids, guesses)]
        read = [(c.reader, row) for c, row, skips in zip(contexts, rows, ahead) if not skips]
        if len(read) == 1 and not self._model.transformer.pauses.is_on:
            [(reader, (token, *draft))] = read
            on_engine(reader.read_draft, token, draft)
        elif read:
            on_engine(self._read, read)
        problems: dict[int, KvarnError] = {}
        for number, (context, draft) in enumerate(zip(contexts, guesses)):
            if ahead[number]:
                on_engine(context.reader.accept)
                context.stats.add_accepted()
            else:
                context.stats.add_draft(len(draft))
            try:
                context.decoded(clock)
            except KvarnError as problem:
                problems[number] = problem
        if problems:
            raise SaveFailed(problems)

    def _check(
        self, contexts: Sequence[Context], ids: Sequence[int], guesses: Sequence[Sequence[int]]
    ) -> None:
        if not len(contexts) == len(ids) == len(guesses):
            raise ContextError(
                f"{len(contexts)} contexts, {len(ids)} tokens and {len(guesses)} drafts, expected "
                "one each"
            )
        if len({id(context) for context in contexts}) < len(contexts):
            raise ContextError(
                "a context stands twice among those to decode: it has one next token"
            )
        for context, token, draft in zip(contexts, ids, guesses):
            if context.model is not self._model:
                raise ContextError("contexts of different models cannot be decoded together")
            context.reader.check_draft(token, draft)

    def _read(self, parts: list[tuple[TokenReader, list[int]]]) -> None:
        """One pass, on the engine's thread: in each context a token, and guesses after it."""
        readers = [reader for reader, _ in parts]
        transformer = self._batch_pass(sum(len(ids) for _, ids in parts))
        for reader in readers:
            reader.prepare()
        begun: list[TokenReader] = []
        flags = [reader.stop_flag for reader in readers]
        with stopping(flags, all(reader.cache.keeps_all for reader in readers)):
            try:
                rows = []
                for reader, ids in parts:
                    begun.append(reader)
                    attention = reader.begin(len(ids), prompt=False)
                    n, n_ctx = len(reader.tokens), reader.cache.most_tokens
                    rows.append(NextTokens(ids, n, attention, n_ctx))
                device, n_vocab = transformer.device, transformer.config.n_vocab
                result = transformer.read(rows)
                logits = device.memory((len(result), n_vocab), np.float32)
                transformer.logits(result, logits)
                hidden, of_rows = device.get(result), device.get(logits)
            except BaseException:
                for reader in begun:
                    reader.abort()
                raise
        first = 0
        for reader, ids in parts:
            of_one = slice(first, first + len(ids))
            first += len(ids)
            reader.end(ids, hidden[first - 1], prompt=False)
            reader.set_draft(ids[1:], hidden[of_one], of_rows[of_one])

    def _batch_pass(self, n: int) -> BatchTransformer:
        """The pass, with memory for n tokens."""
        if self._pass is None or n > self._most:
            self._most = max(LEAST_ROWS, 1 << (n - 1).bit_length())
            transformer = self._model.transformer
            self._pass = BatchTransformer(transformer.config, transformer.weights, self._most)
        return self._pass
