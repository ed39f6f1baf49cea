"""How an instruct model is asked: a context and a question as one message of its chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.tokenizer import Rendered
from .plan import BREAK, EvalError

if TYPE_CHECKING:
    from ...runtime.chat.template import ChatTemplate
    from ...runtime.model import Model

MESSAGE = "Is this a message?"
"""What the template is tried with."""
HIDDEN = (
    "Some facts are hidden in the following text. Memorize them. I will quiz you about them "
    "afterwards."
)
_COUNTED = (
    "Below is a list of words, in which some come more often than others. Memorize those that come "
    "most often."
)
_DOCUMENTS = "Answer the question based on the given documents. Give only the answer."
INTRODUCTIONS = {
    "vt": "Memorize which things in the following text have the same number.",
    "cwe": _COUNTED,
    "fwe": _COUNTED,
    "frequent": _COUNTED,
    "qa_1": _DOCUMENTS,
    "qa_2": _DOCUMENTS,
}
"""Task → what stands before its context, where it is not `HIDDEN`. As RULER's, of kvarn's words,
without its worked examples."""


@dataclass(frozen=True)
class Chat:
    """A model's chat template, as what it writes before and after a message.

    head: what stands before a message; tail: what follows it, up to where the answer begins. What
    stands in a message is quoted: no control token counts there.
    """

    template: ChatTemplate
    head: Rendered
    tail: Rendered

    @classmethod
    def of(cls, model: Model) -> Chat:
        """Chat by a model's own template.

        Raises `EvalError` for a model without one, and for a template that does not write a message
        as it is; `TemplateError` for one that fails."""
        template = model.chat_template
        if template is None:
            raise EvalError(
                f"{model.name} has no chat template: ask without --chat, or take an instruct model"
            )
        head, _, tail = _written(template, MESSAGE).partition(MESSAGE)
        chat = cls(template, Rendered(head), Rendered(tail))
        chat._check(MESSAGE)
        return chat

    @property
    def facts(self) -> list[str]:
        """All that a prompt depends on beside context and question, for keys."""
        return [self.head, self.tail, Path(__file__).read_text(encoding="utf-8")]

    def context(self, task: str, text: str) -> Rendered:
        """The beginning of a prompt: the template's, the introduction of a task, a context."""
        return self.head + _introduced(task, text)

    def question(self, text: str) -> Rendered:
        """The rest: a question, the template's end, and the beginning of the answer."""
        asked, begun = parted(text)
        return Rendered() + (BREAK + asked) + self.tail + begun

    def check(self, task: str, text: str, question: str) -> None:
        """Raise `EvalError` if the template writes another message than the two parts together."""
        self._check(_introduced(task, text) + BREAK + parted(question)[0])

    def _check(self, message: str) -> None:
        if _written(self.template, message) != self.head + message + self.tail:
            raise EvalError(
                "--chat: the chat template changes a message, so that no context can be read "
                "before its question: ask without --chat"
            )


def parted(text: str) -> tuple[str, str]:
    """A question as a user asks it, and the beginning of its answer.

    The answer begins after the last question mark or line break. Where there is none, the user asks
    to complete a sentence, with which the answer begins.
    """
    if at := max(text.rfind("?"), text.rfind("\n")) + 1:
        return text[:at].strip(), text[at:].strip()
    return f'Complete this sentence: "{text} …"', text


def _introduced(task: str, text: str) -> str:
    return f"{INTRODUCTIONS.get(task, HIDDEN)}\n\n{text}"


def _written(template: ChatTemplate, message: str) -> Rendered:
    return template.render([{"role": "user", "content": message}])
