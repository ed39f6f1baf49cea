"""What an answer must match, as a user says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ..errors import BadOption
from .form import Form, Kind
from .grammar import check

KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Constraint(Form):
    """What an answer must match.

    kind: how `value` says it. "json_schema": a JSON schema (draft 2020-12) as text; "json_object":
    any JSON object, without a value; "regex": a regular expression of Rust's crate regex; "gbnf": a
    grammar as llama.cpp writes it; "lark": one of llguidance, with the directives of `lark.py`.

    trigger: (): the whole answer is one match. Else the answer is any text, in which one match
    follows each of these texts, and any text follows the match. A trigger that is the spelling of
    a control token stands for that token.

    after: without a trigger, the end of any text that stands before the match, such as reasoning.

    Between JSON tokens stands at most one space, or one or two line breaks and 20 blanks of
    indentation: weak models write white space for ever where they may.

    Raises `SamplingError` for what is no such value or needs what llguidance has not, and where
    llguidance is not installed.
    """

    @classmethod
    def of(cls, form: Form) -> Constraint:
        """The form, checked."""
        return cls(form.kind, form.value, form.trigger, form.after)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadOption(
                f"sampling: a constraint is of kind {self.kind!r:.50}, expected one of "
                f"{', '.join(KINDS)}"
            )
        if not isinstance(self.value, str):
            raise BadOption(f"sampling: {self.kind} is {self.value!r:.50}, expected a text")
        texts = self.trigger
        if not isinstance(texts, tuple) or not all(isinstance(t, str) and t for t in texts):
            raise BadOption(f"sampling: trigger is {texts!r:.50}, expected texts")
        if not isinstance(self.after, str) or (self.after and texts):
            raise BadOption(
                f"sampling: after is {self.after!r:.50}, expected a text, and none with a trigger"
            )
        try:
            "".join((self.value, self.after, *texts)).encode()
        except UnicodeEncodeError:
            raise BadOption(
                f"sampling: {self.kind} holds half a character (a lone surrogate), expected Unicode"
            ) from None
        check(self.kind, self.value, texts, self.after)
