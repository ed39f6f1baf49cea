"""What tests compare: contexts that decode alone, and the same ones in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvarn.runtime.context import Context
from kvarn.runtime.context.batch import Batch
from kvarn.runtime.model import Model

Make = Callable[[], Context]
Step = tuple[int, np.ndarray]


def prompt(model: Model, number: int, n: int) -> list[int]:
    return np.random.default_rng(number).integers(0, model.config.n_vocab, n).tolist()


def greedy(context: Context) -> int:
    return int(context.logits.argmax())


def alone(make: Make, prompt: Sequence[int], steps: int) -> list[Step]:
    """Greedy tokens, each with the logits after it, of a context that has the machine to itself."""
    with make() as context:
        context.prefill(prompt)
        return [(token := greedy(context), context.decode(token).copy()) for _ in range(steps)]


def guesses(context: Context, coming: list[int], kind: int) -> list[int]:
    """A draft for a context that reads `coming`, the first of which is no guess."""
    draft = [] if context.reads_ahead(coming[0]) else coming[1 : 1 + kind % 5]
    draft = draft[: context.draft_room]
    if draft and kind % 3 == 2:
        draft[-1] = (draft[-1] + 1) % context.model.config.n_vocab
    return draft


def check(
    model: Model,
    makes: Sequence[Make],
    prompts: Sequence[list[int]],
    steps: int = 6,
    *,
    drafting: bool = False,
) -> list[Context]:
    """Decode together what `alone` decodes, with the same ids and bits; returns the contexts.

    drafting: some contexts have drafts of 1 to 4 tokens, of which some end with a wrong one."""
    expected = [alone(*parts, steps) for parts in zip(makes, prompts, strict=True)]
    contexts, batch = [make() for make in makes], Batch(model)
    for context, ids in zip(contexts, prompts):
        context.prefill(ids)
    for step in range(steps):
        tokens = [greedy(context) for context in contexts]
        drafts = [
            guesses(context, [token for token, _ in known[step:]], step + number)
            for number, (context, known) in enumerate(zip(contexts, expected))
        ]
        batch.decode_together(contexts, tokens, drafts if drafting else None)
        for number, (context, token) in enumerate(zip(contexts, tokens)):
            known, logits = expected[number][step]
            assert token == known, f"step {step}, context {number}"
            message = f"step {step}, context {number}"
            np.testing.assert_array_equal(context.logits, logits, err_msg=message)
    if drafting:
        assert sum(context.stats.accepted_tokens for context in contexts) > 0
    return contexts
