"""gpt-oss: messages with a channel and, for calls, a recipient; `harmony` of OpenAI.

    <|channel|>analysis<|message|>REASONING<|end|><|start|>assistant<|channel|>final<|message|>TEXT
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>

Source: cookbook.openai.com, OpenAI Harmony Response Format.
"""

from __future__ import annotations

import json
import re
from functools import partial

from ..json_text import arguments
from ..lark import Rules, named_calls
from ..reading import Prose, Reading
from ..source import MalformedCall, Steps
from ..tools import Tools
from .base import Format

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CALL, _CONSTRAIN = "<|call|>", "<|constrain|>"
_RECIPIENT = "to=functions."
_HEADERS = (_CHANNEL, _START)
_ENDS = ("<|end|>", "<|return|>", _CALL, _START)
_TO = re.compile(r"to=functions\.([\w.-]+)")
_NAMED = re.compile(r"<\|channel\|>\s*(\w+)")


class Harmony(Format):
    """Each message has a header, which says where its text belongs."""

    @classmethod
    def of(cls, template: str) -> Format | None:
        return cls() if _CHANNEL in template and _MESSAGE in template else None

    def answer(self, reading: Reading) -> Steps[None]:
        source = reading.source
        source.mark()
        yield from source.space()
        marker = _RECIPIENT if (yield from source.literal(_RECIPIENT)) else ""
        if marker:
            source.unmark()
        else:
            source.rewind()
            marker = yield from reading.prose_until(_HEADERS)
        while marker:
            end = yield from self._message(reading, marker)
            marker = _START if end == _START else (yield from reading.prose_until(_HEADERS))

    def _message(self, reading: Reading, marker: str) -> Steps[str]:
        """Read a message behind the first text of its header; the text that ends it."""
        source = reading.source
        header = [marker]
        if not (yield from source.until((_MESSAGE,), header.append)):
            return ""
        text = "".join(header)
        to, named = _TO.search(text), _NAMED.search(text)
        if to:
            if (yield from reading.attempt(partial(self._call, reading, to[1]))):
                return (yield from source.until(_ENDS, len))
            return (yield from reading.prose_until(_ENDS))
        is_final = named is None or named[1] in ("final", "commentary")
        prose = reading.prose if is_final and "to=" not in text else Prose(reading.writer.reasoning)
        return (yield from source.until(_ENDS, prose))

    def _call(self, reading: Reading, name: str) -> Steps[None]:
        source, writer = reading.source, reading.writer
        yield from source.space()
        if (yield from source.peek()) != "{":
            raise MalformedCall
        writer.begin(name)
        yield from arguments(source, writer.arguments)
        writer.end()

    def rules(self, tools: Tools) -> Rules:
        head = json.dumps(f" {_CONSTRAIN}json{_MESSAGE}")
        opens = f"{_CHANNEL}commentary to=functions."
        return Rules(opens, named_calls(tools, head), repeats=False)
