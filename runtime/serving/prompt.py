"""What requests say of a prompt: a conversation, a text or ids, and how it is read.

Imports no NumPy and no kernels.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from ..chat.openai.errors import invalid
from ..chat.openai.messages import named_results


class Chat(msgspec.Struct, tag=True, omit_defaults=True):
    """A conversation to render with the model's chat template.

    messages: in OpenAI's form, `content` a text, `tool_calls` with arguments as objects,
    `reasoning_content` beside them. extra: variables of the template, such as `enable_thinking`.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    extra: dict[str, Any] = {}
    continues: bool = False
    """The last message is an answer to go on with, and not to answer."""

    @classmethod
    def of(
        cls,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        extra: dict[str, Any],
        field: str = "messages",
    ) -> Chat:
        """The conversation, which goes on with its last message where that is an answer. Raises
        `RequestError` for no messages, by the name of their field."""
        if not messages:
            raise invalid(field, [], "one message or more")
        last = messages[-1]
        continues = last["role"] == "assistant" and "tool_calls" not in last
        return cls(named_results(messages), tools or None, extra, continues)

    @property
    def finished(self) -> list[dict[str, Any]]:
        """The messages but for one to go on with."""
        return self.messages[:-1] if self.continues else self.messages


class Text(msgspec.Struct, tag=True, omit_defaults=True):
    """Text as it is; control tokens that it spells out count if `special`."""

    text: str
    special: bool = False


Prompt: TypeAlias = Chat | Text | list[int]


class Reading(msgspec.Struct, tag=True, omit_defaults=True):
    """How a prompt is read and attended to, in the command line's words (`run --method …`)."""

    words: dict[str, Any] = {}
    pack: str = ""
    """The name of a pack that the prompt follows."""
    keep_in_library: bool = True
