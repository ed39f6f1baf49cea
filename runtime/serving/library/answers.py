"""Answers as they were generated, found by the messages that a later prompt has in their place.

A template may write an earlier answer otherwise than the model generated it: without its thinking,
a tool call in another form. A prompt would part there from what was read. So the ids of a prompt
and its answer are kept with a digest of the messages up to the answer. A prompt that begins with
these messages begins with these ids; then comes what the template writes after the answer, which is
found by rendering a text that occurs nowhere else in the answer's place.

A digest is of what clients send back: roles, texts and calls of tools, without thinking and the ids
of calls. `journal.py` draws the file.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import xxhash

from ...chat.lenient import Message, Render
from ...chat.sandbox.errors import TemplateError
from ...context.reading.prompt import prompt_ids
from ...tokenizer import Rendered
from .journal import Journal, Record
from .tree import TokenTree, as_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from ...tokenizer import Tokenizer

ANY_END = 0xFFFFFFFF
"""In a record: no token ended the answer, but a constraint, a stop string or a limit."""
MOST = 4096
"""Answers that are kept: the newest ones."""


class Answers:
    """The answers of one model; any thread may call it. file: None: they do not outlast it."""

    def __init__(self, tokenizer: Tokenizer, file: Path | None, most_bytes: int = 0) -> None:
        self._tokenizer, self._lock = tokenizer, threading.Lock()
        self._tree: TokenTree[bytes] = TokenTree()
        self._ends: dict[bytes, int] = {}
        self._journal = None if file is None else Journal(file, most_bytes)
        for record in () if self._journal is None else self._journal.read():
            self._keep(record)

    @property
    def n_bytes(self) -> int:
        """Bytes of its file, at most."""
        return 0 if self._journal is None else self._journal.n_bytes

    def remember(
        self,
        messages: Sequence[Message],
        variables: Mapping[str, Any],
        ids: Sequence[int],
        end: int | None,
    ) -> None:
        """Know that `ids`, a prompt and its answer, stand for the messages, the last of which is
        the answer. variables: of the template, and the tools. end: the end-of-generation token that
        ended the answer and is not in `ids`; None where none did: the template says what comes
        then. Answers that other tokens end are not kept."""
        if (end is not None and end not in self._tokenizer.eog_ids) or not ids:
            return
        end = ANY_END if end is None else end
        record = Record(_digests(messages, variables)[-1], end, as_tokens(ids))
        with self._lock:
            self._keep(record)
            if self._journal is not None:
                self._journal.append(record, self._records)

    def prompt_ids(
        self, messages: Sequence[Message], variables: Mapping[str, Any], render: Render
    ) -> list[int]:
        """The ids of a prompt: for the longest beginning of the messages that is known, those that
        were read and generated, then those of the rest. Raises what `render` raises."""
        digests = _digests(messages, variables)
        for i in range(len(messages) - 1, -1, -1):
            if messages[i].get("role") != "assistant":
                continue
            with self._lock:
                end = self._ends.get(digests[i])
                known = None if end is None else self._tree.tokens_of(digests[i])
            if end is not None and known is not None:
                rest = self._rest(messages, i, end, render)
                if rest is not None:
                    return [*known.tolist(), *rest]
        return prompt_ids(self._tokenizer, render(messages))

    def _rest(
        self, messages: Sequence[Message], i: int, end: int, render: Render
    ) -> list[int] | None:
        """The ids of what follows the answer that is message `i`, from its `end` on; None if that
        cannot be told."""
        mark = f"answer{secrets.token_hex(8)}"
        ends = self._tokenizer.eog_ids if end == ANY_END else [end]
        for stand_in in _stand_ins(messages[i], mark):
            try:
                whole = render([*messages[:i], stand_in, *messages[i + 1 :]])
            except TemplateError:
                continue
            if whole.count(mark) != 1:
                continue
            start = whole.index(mark) + len(mark)
            places = [_find(whole, self._tokenizer.text_of(one), start) for one in ends]
            at = min((at for at in places if at is not None), default=None)
            is_text = end == ANY_END and "tool_calls" not in stand_in
            if is_text and (at is None or whole[start:at].strip()):
                at = start  # all that the template writes after it follows
            if at is None:
                continue
            rest = prompt_ids(self._tokenizer, whole.rest(at), begins=False, special=True)
            if rest and (at == start or rest[0] in ends):
                return rest
        return None

    def _keep(self, record: Record) -> None:
        self._ends.pop(record.digest, None)
        self._ends[record.digest] = record.end
        self._tree.insert(record.ids, record.digest)
        while len(self._ends) > MOST:
            oldest = next(iter(self._ends))
            del self._ends[oldest]
            self._tree.remove(oldest)

    def _records(self) -> list[Record]:
        """All answers, the oldest first."""
        return [Record(d, end, self._tree.tokens_of(d)) for d, end in self._ends.items()]


def _digests(messages: Sequence[Message], variables: Mapping[str, Any]) -> list[bytes]:
    """The digest of each beginning of the messages."""
    state = xxhash.xxh3_128(_canonical(variables))
    digests = []
    for message in messages:
        state.update(_canonical(_comparable(message)))
        digests.append(state.digest())
    return digests


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode() + b"\n"


def _comparable(message: Message) -> list[Any]:
    """What a client sends back of a message as it was. Texts around calls of an answer may come
    back with other white space between them."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        content = (content or "").strip()
        if message.get("role") == "assistant":
            content = "".join(content.split())
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        calls.append([function.get("name"), _arguments(function.get("arguments"))])
    return [message.get("role"), content, calls, message.get("name")]


def _arguments(value: Any) -> Any:
    """Arguments of a call, which JSON may spell in several ways."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _stand_ins(message: Message, mark: str) -> list[dict[str, Any]]:
    """Messages to render in the place of an answer: one with the mark as its text, and where it
    calls tools, one with the mark in the last call, for templates that need the calls."""
    plain = {"role": message.get("role"), "content": mark}
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls or not isinstance(calls[-1], Mapping):
        return [plain]
    last = dict(calls[-1])
    function = last.get("function")
    if isinstance(function, Mapping):
        last["function"] = {**function, "arguments": {"mark": mark}}
    else:
        last["arguments"] = {"mark": mark}
    kept = {key: value for key, value in message.items() if "reason" not in key}
    return [{**kept, "tool_calls": [*calls[:-1], last]}, plain]


def _find(text: Rendered, control: str, start: int) -> int | None:
    """The place of a control token that the template wrote, from `start` on."""
    at = text.find(control, start)
    while at >= 0 and any(first < at + len(control) and at < stop for first, stop in text.quoted):
        at = text.find(control, at + 1)
    return None if at < 0 else at
