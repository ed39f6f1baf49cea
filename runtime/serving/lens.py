"""What an answer attended to, weighed in slices after its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...system.errors import KvarnError, message_of
from ..context.reading.prompt import n_common
from ..lens.passages import Lens
from ..lens.quotes import quotes_of
from ..lens.weights import NEUTRAL, NEUTRAL_ANSWER, SINK, weighing
from .protocol import Chat, Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from ..context import Context
    from ..context.planning.request import ContextRequest
    from ..tokenizer import Tokenizer

_MOST_QUESTION = 32
"""Tokens at the end of a text that are its question, where its last line is longer."""


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
    encode, piece = tokenizer.encode, tokenizer.piece
    if isinstance(prompt, Chat):
        messages = prompt.messages[:-1] if prompt.continues else prompt.messages
        if messages:
            *before, last = messages
            text = last.get("content") if alone else None
            head = text.rstrip().rpartition("\n") if isinstance(text, str) else ("", "", "")
            asked = {"role": last.get("role"), "content": f"{head[0]}{head[1]}{NEUTRAL}"}
            chat = Chat([*before, asked], prompt.tools, prompt.extra)
            return [*ids_of(chat), *encode(NEUTRAL_ANSWER)]
    n = max(len(ids) - _MOST_QUESTION, 0) if alone else 0
    ends = (i + 1 for i in range(len(ids) - 2, n - 1, -1) if b"\n" in piece(ids[i]))
    n = next(ends, n) if alone else 0
    return [*ids[:n], *encode(f"{NEUTRAL} {NEUTRAL_ANSWER}")]


def lens_steps(
    open: Callable[[ContextRequest], Context],
    asked: ContextRequest,
    tokens: Sequence[int],
    neutral: Sequence[int],
    n_pack: int,
    tokenizer: Tokenizer,
) -> Generator[None, int | None, Lens]:
    """Weighs what stands before the question, in steps as `weighing`; returns the lens.

    open: opens a context that holds what it can of the tokens. tokens: of prompt and answer;
    neutral: see `neutral_ids`. Both begin with the same `n_pack` tokens of a pack.
    """
    n = n_common(tokens, neutral)
    if n <= SINK:
        return Lens(note="nothing stands before the question")
    document = tokens[:n]
    try:
        weights = yield from weighing(open, asked, document, tokens[n:], neutral[n:])
    except KvarnError as error:  # the answer is there, and stays
        return Lens(note=f"nothing could be weighed: {' '.join(message_of(error).split())}")
    return Lens(quotes_of(tokenizer, document, weights, n_pack))
