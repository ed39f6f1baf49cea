"""Tools of a request: in OpenAI's form, with which of them must be called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...runtime.sampling.constraints.form import Form
from ...system.text import shown
from ..service import Service
from ..wire.errors import ApiError, invalid

Choice = str | dict[str, Any]
"""OpenAI's `tool_choice`: "none", "auto", "required", or the function to call."""


@dataclass(frozen=True)
class Tools:
    """The tools that a model may call. one_call: no two in one answer."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    choice: Choice = "auto"
    one_call: bool = False

    @property
    def offered(self) -> list[dict[str, Any]] | None:
        """The tools that the prompt describes."""
        return None if self.choice == "none" else self.tools or None

    def beside(self, form: Form | None) -> Form | None:
        """The form of the answer that a request names, if tools leave it room.

        Raises `ApiError` 400 where an answer would have two forms.
        """
        if form is not None and self.offered is not None:
            raise ApiError(
                400,
                "tools and a form of the answer (response_format, grammar) exclude each "
                'other: omit one, or say tool_choice "none"',
                "tools",
            )
        return form


def function(
    name: str, description: str | None, parameters: dict[str, Any] | None
) -> dict[str, Any]:
    """A tool in the engine's form."""
    fields: dict[str, Any] = {"name": name}
    if description:
        fields["description"] = description
    fields["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": fields}


def named(name: str, tools: Sequence[dict[str, Any]], path: str) -> Choice:
    """The choice of this tool. Raises `ApiError` 400 where it is not among the tools."""
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        raise invalid(path, name, f"one of the tools: {', '.join(names)[:200] or 'it has none'}")
    return {"type": "function", "function": {"name": name}}


def skipped(service: Service, path: str, kind: str) -> None:
    """Say that a tool which runs at its vendor's is left out."""
    service.log.notice(f"{path}: a tool of type {shown(kind, 40)} is not here, and left out")
