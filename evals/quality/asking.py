"""Asking the questions about one context."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...runtime.sampling import Sampler
from ...runtime.store import Disk, Ram
from .folder import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...runtime.context import Context, Mark, Progress
    from ...runtime.model import Model
    from ...runtime.prefill import Prefill
    from .arms import Arm
    from .reading import TokenSample


_COUNTERS = (
    "stored_tokens",
    "attended_tokens",
    "probes",
    "covered_mass",
    "entropy",
    "output_error",
)


@contextmanager
def open_asker(
    model: Model, read: TokenSample, arm: Arm, progress: Progress | None = None
) -> Iterator[Asker]:
    """Asks about a context with the arm's methods. Opens the pack; where the arm evicts, reads the
    text into memory instead, because a pack holds all tokens.

    Reads questions that are asked apart as `kvarn run` does."""
    prefill: Prefill | None = arm.reading
    store = Disk(read.pack(model, arm), read_only=True) if arm.keeps_all else Ram(*read.kinds)
    if read.asked == "apart" and arm.keeps_all:
        prefill = None
    keep = arm.keep_for(len(read.ids))
    with model.context(read.n_ctx, arm.attend, keep, store, prefill) as context:
        with model.silenced():  # how large the index of each context is
            context.index()
        yield Asker(context, read, arm, progress)


class Asker:
    """Asks one arm the questions about one context."""

    def __init__(
        self, context: Context, read: TokenSample, arm: Arm, progress: Progress | None = None
    ) -> None:
        self.context, self._read, self._arm, self._progress = context, read, arm, progress
        self._marks: dict[int | None, Mark] = {}

    def ask(self, key: str, number: int) -> Answer:
        """The greedy answer to question `number`. key: the arm's.

        It ends where the model ends it, at a stop string, at the limit of tokens, or once it
        contains all expected strings.
        """
        context, read = self.context, self._read
        question = read.questions[number]
        before = _totals(context)
        self.read_question(read.question_ids[number])
        text, right = "", 0.0
        generation = context.generation((), read.most_tokens[number], Sampler(temp=0), read.stop)
        for piece in generation.pieces():
            text += piece
            right = score(text, question.answers)
            if right == 1:
                break
        new = {name: total - before[name] for name, total in _totals(context).items()}

        def mean(name: str, over: str) -> float | None:
            return new[name] / new[over] if new[over] else None

        return Answer(
            str(self._arm), key, number, right, text,
            covered=mean("covered_mass", "probes"),
            error=mean("output_error", "probes"),
            entropy=mean("entropy", "probes"),
            read=mean("attended_tokens", "stored_tokens"),
        )  # fmt: skip

    def read_question(self, ids: list[int]) -> None:
        """Read a question in place of the previous one and its answer.

        A decoded question is read token by token with the arm's attend method, whatever its
        prefill: so arms that differ in how they read contexts differ in nothing else.
        """
        context, read = self.context, self._read
        if not self._arm.keeps_all:
            ids = self._rewind(ids)
        else:
            shared = context.cut_to_shared(read.ids)
            if shared < len(read.ids):
                context.prefill(read.ids[shared:])
        if read.asked != "decoded":
            context.prefill(ids)
            return
        for token in ids:
            context.decode(token)

    def _rewind(self, ids: list[int]) -> list[int]:
        """Take a context that evicts back to its state before a question; return the ids left.

        That state is read once. For a question inside the prompt, it is the whole chunks of the
        context: so the rest has the bits of one prompt. Otherwise it is the context and, decoded,
        the first token of the question, a line break: so the prompt ends before the question, and
        an eviction after the prompt does not know it.
        """
        context, read_ids = self.context, self._read.ids
        n = len(read_ids)
        if self._read.asked == "inside":
            n -= n % context.model.transformer.max_chunk
            ids = [*read_ids[n:], *ids]
            first = None
        else:
            first, *ids = ids
        if first in self._marks:
            context.return_to(self._marks[first])
            return ids
        context.truncate(0)
        if n:
            context.prefill(read_ids[:n], self._progress)
        if first is not None:
            context.decode(first)
        self._marks[first] = context.mark()
        return ids


def _totals(context: Context) -> dict[str, float]:
    """Counters of `LayerReads` so far, over all layers."""
    layers = context.stats.layers
    return {name: sum(getattr(layer, name) for layer in layers) for name in _COUNTERS}


def score(text: str, answers: Sequence[str]) -> float:
    """The share of `answers` that occur in `text`, ignoring case.

    Source: RULER's `string_match_all` (scripts/eval/synthetic/constants.py).
    """
    lower = text.lower()
    return sum(answer.lower() in lower for answer in answers) / len(answers)
