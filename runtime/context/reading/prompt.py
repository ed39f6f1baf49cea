"""Prompts: their ids, checks of these, the size of chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import SupportsIndex

from ....system.errors import KvarnError
from ....system.spelling import spelt
from ...prefill import CHUNK as CHUNK  # noqa: PLC0414 - a name imported as itself is exported
from ...tokenizer import Rendered, Tokenizer

_COMPARED = 1 << 16
"""Tokens that are compared at once, as lists."""


class ContextError(KvarnError):
    """The context cannot take what it was given."""


def prompt_ids(
    tokenizer: Tokenizer, text: str | bytes, *, begins: bool = True, special: bool = False
) -> list[int]:
    """Ids of a prompt. What a chat template wrote is instruction, what people wrote is text.

    Control tokens count in a `Rendered` text, outside of what it quotes; in other text only if
    `special`. begins: nothing stands before the prompt. Then it has one BOS at its beginning, if
    the vocabulary asks for it or the text writes it; else it has none there.
    """
    rendered, bos = isinstance(text, Rendered), tokenizer.bos_id
    adds, special = begins and tokenizer.add_bos, special or rendered
    # `encode` would add EOS, too, which ends a conversation.
    ids = tokenizer.encode(text, bos=adds and not rendered, special=special)
    if adds and rendered and bos is not None:
        ids.insert(0, bos)
    if special and ids[:1] == [bos] and (not begins or (adds and ids[1:2] == [bos])):
        del ids[0]
    return ids


def checked_ids(prompt: Iterable[SupportsIndex]) -> list[int]:
    """The ids of a prompt; `ContextError` for bytes and for items that are not whole numbers.

    Bytes are whole numbers, too: without the check they would be taken for ids.
    """
    if isinstance(prompt, str | bytes | bytearray | memoryview):
        raise ContextError(
            f"a prompt is text or token ids, found {type(prompt).__name__}: decode bytes "
            "(data.decode()), encode text (context.encode(text))"
        )
    try:
        return [index(i) for i in prompt]
    except TypeError as error:
        raise ContextError(f"a prompt is text or token ids, whole numbers: {error}") from error


def check_readable(ids: Sequence[int], n_held: int, n_vocab: int, most_tokens: int) -> None:
    """`ContextError` if `ids` cannot be read after `n_held` of at most `most_tokens` tokens."""
    if not ids and not n_held:
        raise ContextError("nothing to read: the prompt is empty")
    if ids and not 0 <= min(ids) <= max(ids) < n_vocab:
        wrong = next(i for i in ids if not 0 <= i < n_vocab)
        raise ContextError(f"token id {wrong} is outside the vocabulary of {n_vocab} tokens")
    if n_held + len(ids) > most_tokens:
        more, held = (" more", f" and holds {n_held:,}") if n_held else ("", "")
        raise ContextError(
            f"{len(ids):,}{more} tokens do not fit: the context has room for {most_tokens:,}"
            f"{held}; use a larger context ({spelt('ctx')}) or a shorter prompt"
        )


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first items two sequences share."""
    n = min(len(a), len(b))
    for start in range(0, n, _COMPARED):
        stop = min(start + _COMPARED, n)
        if a[start:stop] != b[start:stop]:  # usually not: of lists, a hundred times as fast
            differs = (i for i in range(start, stop) if a[i] != b[i])
            if (first := next(differs, None)) is not None:
                return first
    return n


def n_shared(ids: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of `ids` need not be read after `tokens`, which `ids` continues or replaces: what
    they have in common; the last of `ids` is read again, for its logits, if tokens followed it."""
    n = n_common(ids, tokens)
    return n if n == len(tokens) else min(n, max(0, len(ids) - 1))
