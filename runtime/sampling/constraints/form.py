"""The form that an answer is asked to have, as messages carry it: checked where it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["json_schema", "json_object", "regex", "gbnf", "lark"]


@dataclass(frozen=True)
class Form:
    """The fields of `Constraint`."""

    kind: Kind
    value: str = ""
    trigger: tuple[str, ...] = ()
    after: str = ""
