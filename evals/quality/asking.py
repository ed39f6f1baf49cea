"""Asks one arm the questions about one context."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ...runtime.sampling import Sampler
from ...runtime.store import Disk, Ram
from .folder import Answer
from .reading import BREAK
from .scoring import score

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...runtime.context import Context, Progress
    from ...runtime.model import Model
    from .arms import Arm
    from .reading import Read


_COUNTERS = (
    "stored_tokens",
    "attended_tokens",
    "probes",
    "covered_mass",
    "entropy",
    "output_error",
)


@contextmanager
def opened(
    model: Model, read: Read, arm: Arm, progress: Progress | None = None
) -> Iterator[Context]:
    """A context with the arm's methods that holds what was read. It opens the pack, or reads the
    text anew into memory where the arm evicts, because a pack holds all tokens.

    Questions that are asked apart are read as `kvarn run` reads them."""
    prefill = arm.reading
    store = Disk(read.pack(model, arm), read_only=True) if arm.keeps_all else Ram(*read.kinds)
    if read.asked == "apart" and arm.keeps_all:
        prefill = model.prefill_of_question(arm.attend, arm.keeping, read.n_ctx, store)
    with model.context(read.n_ctx, arm.attend, arm.keep_for(read), store, prefill) as context:
        if not context.tokens and read.asked != "inside":
            context.prefill(read.ids, progress)
        context.index()
        yield context


def ask(context: Context, read: Read, arm: Arm, key: str, number: int) -> Answer:
    """The greedy answer to question `number` after what was read. key: the arm's.

    It ends at a line break, at the limit of tokens, or once it contains all that was asked for.
    """
    question = read.questions[number]
    before = _totals(context)
    _pose(context, read, arm, read.question_ids[number])
    text, right = "", 0.0
    generation = context.generation((), read.most_tokens[number], Sampler(temp=0), (BREAK,))
    for piece in generation.pieces():
        text += piece
        right = score(text, question.answers)
        if right == 1:
            break
    new = {name: total - before[name] for name, total in _totals(context).items()}

    def mean(name: str, over: str) -> float | None:
        return new[name] / new[over] if new[over] else None

    return Answer(
        str(arm), key, number, right, text,
        covered=mean("covered_mass", "probes"),
        error=mean("output_error", "probes"),
        entropy=mean("entropy", "probes"),
        read=mean("attended_tokens", "stored_tokens"),
    )  # fmt: skip


def _pose(context: Context, read: Read, arm: Arm, ids: list[int]) -> None:
    """Read a question in place of the previous one and its answer.

    One that is decoded is read token by token with the arm's attend method, whatever its prefill:
    so arms that differ in how contexts are read differ in nothing else. Eviction cannot be undone:
    there the context is read again.
    """
    if read.asked == "inside" and not arm.keeps_all:
        context.truncate(0)
        context.prefill([*read.ids, *ids])
        return
    shared = context.cut_to_shared(read.ids)
    if shared < len(read.ids):
        context.prefill(read.ids[shared:])
    if read.asked != "decoded":
        context.prefill(ids)
        return
    for token in ids:
        context.decode(token)


def _totals(context: Context) -> dict[str, float]:
    """Counters of `LayerReads` so far, over all layers."""
    layers = context.stats.layers
    return {name: sum(getattr(layer, name) for layer in layers) for name in _COUNTERS}
