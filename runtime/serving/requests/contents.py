"""Where the contents of messages stand in a prompt, among what its chat template writes.

The template renders the messages with a mark in the place of each text. What stands between the
marks is its own, and is then looked for in the prompt, one piece after the other. White space does
not count: templates cut it, and vocabularies add it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...chat.sandbox.errors import TemplateError
from ...lens.passages import Source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...tokenizer import Tokenizer

    Render = Callable[[Sequence[Mapping[str, Any]]], str]

_SPACE = b" \t\n\r\v\f"
_MOST_QUESTION = 32
"""Tokens at the end of a text that are its question, where its last line is longer."""


def question_start(tokenizer: Tokenizer, ids: Sequence[int], most: int = _MOST_QUESTION) -> int:
    """Find where the question of a text begins: its last line, of at most `most` tokens."""
    first = max(len(ids) - most, 0)
    ends = (i + 1 for i in range(len(ids) - 2, first - 1, -1) if b"\n" in tokenizer.piece(ids[i]))
    return next(ends, first)


def contents_of(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    ids: Sequence[int],
    render: Render,
) -> list[Source] | None:
    """Find the contents of messages in the ids of their prompt, in order, named by their messages
    if there are several; None where the template writes other things around other contents.

    Of the last one, what stands before its question: its last line, or all that is no plain text.
    An answer stands there as it was generated, with the thinking that its message may lack.
    """
    texts: list[tuple[int, str]] = []
    mark = f"text{secrets.token_hex(8)}x"

    def marked(number: int, text: str) -> str:
        if not text.strip():
            return text
        texts.append((number, text))
        return f"{mark}{len(texts) - 1}x"

    forms = [
        {**message, "content": _with_texts(message.get("content"), partial(marked, number))}
        for number, message in enumerate(messages, 1)
    ]
    try:
        written = re.split(f"{mark}([0-9]+)x", render(forms))
    except TemplateError:
        return None
    owners, data = _bytes_of(tokenizer, ids)
    first, *after = (_squeezed(one.encode("utf-8", "replace")) for one in written[::2])
    start, sources = data.find(first) + len(first), list[Source]()
    if first not in data:
        return None
    for index, follows in zip(map(int, written[1::2]), after):
        number, text = texts[index]
        stop = _end(data, start, _squeezed(text.encode("utf-8", "replace")), follows)
        if stop is None:
            return None
        if start < stop:
            name = f"message {number}, " if len(messages) > 1 else ""
            sources.append(Source(owners[start], owners[stop - 1] + 1, name))
            if number == len(messages):
                part = ids[sources[-1].start : sources[-1].stop]
                is_text = isinstance(messages[-1]["content"], str)
                n = question_start(tokenizer, part, len(part)) if is_text else 0
                sources[-1] = replace(sources[-1], stop=sources[-1].start + n)
        start = stop + len(follows)
    return [source for source in sources if source.start < source.stop]


def _end(data: bytes, start: int, text: bytes, follows: bytes) -> int | None:
    """Where a text ends that begins at `start`, and stands there as it is or in another form."""
    stop = start + len(text) if data.startswith(text, start) else start
    if follows:
        stop_at = data.find(follows, stop)
        return None if stop_at < 0 else stop_at
    return stop if stop > start else None


def _bytes_of(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[list[int], bytes]:
    """The bytes of tokens without white space, and the position of the token of each."""
    pieces = [_squeezed(tokenizer.piece(token)) for token in ids]
    owners = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    return owners.tolist(), b"".join(pieces)


def _squeezed(text: bytes) -> bytes:
    return text.translate(None, _SPACE)


def _with_texts(content: Any, make: Callable[[str], str]) -> Any:
    """A content, one text or several parts, with other texts."""
    if isinstance(content, str):
        return make(content)
    if not isinstance(content, list):
        return content
    return [
        {**part, "text": make(part["text"])}
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]
