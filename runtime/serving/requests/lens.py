"""What an answer attended to, weighed in slices after its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ....system.errors import KvarnError, message_of
from ...context.reading.prompt import n_common
from ...lens.passages import Lens, Source
from ...lens.quotes import quotes_of
from ...lens.weights import NEUTRAL, NEUTRAL_ANSWER, SINK, weighing
from ..prompt import Chat, Prompt
from .contents import question_start

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ...context import Context
    from ...context.planning.request import ContextRequest
    from ...tokenizer import Tokenizer


def neutral_ids(
    tokenizer: Tokenizer,
    prompt: Prompt,
    ids: Sequence[int],
    ids_of: Callable[[Prompt], list[int]],
    alone: bool,
) -> list[int]:
    """The ids of a prompt whose question is replaced by a neutral one, and of an answer to that.

    The question of a chat is the last message, or the last line of it where it has several and
    alone: the prompt follows no pack. That of other prompts is all after a pack; else the last
    line, of at most 32 tokens. ids: of the prompt; ids_of: gives those of another chat.
    """
    encode = tokenizer.encode
    if isinstance(prompt, Chat) and prompt.finished:
        *before, last = prompt.finished
        text = last.get("content") if alone else None
        head = text.rstrip().rpartition("\n") if isinstance(text, str) else ("", "", "")
        question = {"role": last.get("role"), "content": f"{head[0]}{head[1]}{NEUTRAL}"}
        chat = Chat([*before, question], prompt.tools, prompt.extra)
        return [*ids_of(chat), *encode(NEUTRAL_ANSWER)]
    n = question_start(tokenizer, ids) if alone else 0
    return [*ids[:n], *encode(f"{NEUTRAL} {NEUTRAL_ANSWER}")]


def lens_steps(
    open: Callable[[ContextRequest], Context],
    request: ContextRequest,
    tokens: Sequence[int],
    neutral: Sequence[int],
    sources: Sequence[Source] | None,
    tokenizer: Tokenizer,
) -> Generator[None, int | None, Lens]:
    """Weighs the sources before the question, in steps as `weighing`; returns the lens.

    open: opens a context that holds what it can of the tokens. tokens: of prompt and answer;
    neutral: see `neutral_ids`. sources: parts of the prompt, in order; None where `contents_of`
    does not know them.
    """
    if sources is None:
        return Lens(note="the chat template does not tell where the messages stand in its text")
    n = n_common(tokens, neutral)
    counted = np.zeros(n, bool)
    for source in sources:
        counted[source.start : source.stop] = True
    if not counted[SINK:].any():
        return Lens(note="nothing stands before the question")
    document = tokens[:n]
    sources = [replace(one, stop=min(one.stop, n)) for one in sources if one.start < n]
    try:
        weights = yield from weighing(open, request, document, tokens[n:], neutral[n:], counted)
    except KvarnError as error:  # the answer is there, and stays
        return Lens(note=f"nothing could be weighed: {' '.join(message_of(error).split())}")
    return Lens(quotes_of(tokenizer, document, weights, sources))
