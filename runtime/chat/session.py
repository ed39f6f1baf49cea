"""A conversation that outlasts the process: its messages beside the KV cache of its context.

    SESSION/                 a context pack (store/disk/folder.py), and in it
      conversation.json      {"system", "messages", "base",
                              "prompt": {"text", "quoted", "n_tokens", "check"}}

The file is written after the context. If a crash leaves it older than the context, the next turn
reads more of the conversation again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..store.disk import files
from ..store.disk.contents import CONVERSATION as NAME
from ..tokenizer import Rendered
from .conversation import Conversation, ConversationError, decoded, encoded

_MOST_BYTES = 1 << 28  # far more than any context holds


@dataclass(frozen=True)
class Session:
    """The folder of one conversation."""

    path: Path

    @property
    def file(self) -> Path:
        return self.path / NAME

    def save(self, conversation: Conversation) -> None:
        """Save the context, then the messages; `StoreError` or OSError where that fails."""
        context = conversation.context
        context.commit()
        text, n_tokens = conversation.prompt
        data = {
            "system": conversation.system,
            "messages": conversation.messages,
            "base": conversation.base,
            "prompt": {
                "text": text,
                "quoted": text.quoted,
                "n_tokens": n_tokens,
                "check": _check(conversation, n_tokens),
            },
        }
        files.replace(self.file, encoded(data))

    def messages(self) -> list[dict[str, str]]:
        """Those that were saved; `ConversationError` for a file that holds no conversation."""
        data = self._data()
        return [] if data is None else data["messages"]

    def load(self, conversation: Conversation) -> bool:
        """Load what was saved; False if there is nothing.

        Raises `ConversationError` for a file that holds no conversation, or one whose context has
        lost the pack it began with.
        """
        data = self._data()
        if data is None:
            return False
        base = data.get("base")
        if type(base) is not int or not 0 <= base <= len(conversation.context.tokens):
            raise ConversationError(
                f"{self.file}: the conversation follows {base!r:.20} tokens of a pack, and the "
                f"context holds {len(conversation.context.tokens)}"
            )
        conversation.system, conversation.messages = data.get("system"), data["messages"]
        conversation.base = base
        conversation.prompt = _prompt(conversation, data.get("prompt"))
        return True

    def _data(self) -> dict[str, Any] | None:
        """What the file holds, if there is one."""
        try:
            return decoded(files.read_file(self.file, _MOST_BYTES), self.file)
        except FileNotFoundError:
            return None


def _prompt(conversation: Conversation, data: Any) -> tuple[Rendered, int]:
    """The last prompt if the context still holds it, else an empty one."""
    nothing = Rendered(), 0
    if not isinstance(data, dict):
        return nothing
    text, n_tokens, quoted = data.get("text"), data.get("n_tokens"), data.get("quoted", [])
    n_cached = len(conversation.context.tokens) - conversation.base
    if not isinstance(text, str) or type(n_tokens) is not int or not 0 <= n_tokens <= n_cached:
        return nothing
    if not isinstance(quoted, list) or not all(map(_is_span, quoted)):
        return nothing
    same = data.get("check") == _check(conversation, n_tokens)
    return (Rendered(text, map(tuple, quoted)), n_tokens) if same else nothing


def _is_span(value: Any) -> bool:
    return isinstance(value, list) and [type(item) for item in value] == [int, int]


def _check(conversation: Conversation, n_tokens: int) -> str:
    """Digest of the last prompt's tokens."""
    base = conversation.base
    ids = conversation.context.tokens[base : base + n_tokens]
    return files.digest(json.dumps(ids).encode()).hex()
