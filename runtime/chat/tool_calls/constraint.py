"""The constraint that a request's choice of tools puts on an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...sampling.constraints.form import Form
from .lark import Rules
from .parser import format_of
from .reasoning import Reasoning
from .tools import Tools


def constraint_for(
    template: str,
    tools: Iterable[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    prompt_end: str = "",
    *,
    one_call: bool = False,
) -> Form | None:
    """What an answer must match so that it calls tools as it may and must; None: anything.

    tool_choice: "none", "auto" or None, "required" (Anthropic's "any"), or one tool: its name, in
    OpenAI's form or with `name` alone. With "auto", text is free up to the model's marker of a
    call, and nothing is constrained where its format has none. one_call: no more than one.
    The reasoning before a call is free.
    """
    known = Tools(tools)
    name = _name_of(tool_choice)
    if tool_choice == "none" or not known.schemas:
        return None
    if name:
        known.schemas = {one: schema for one, schema in known.schemas.items() if one == name}
    rules = format_of(template).rules(known)
    if tool_choice in (None, "auto"):
        if not rules.opens:
            return None
        lines = ["start: body", *rules.lines]
        return Form("lark", "\n".join(lines), (rules.opens,))
    reasoning = Reasoning.of(template, prompt_end)
    return Form("lark", "\n".join(_required(rules, reasoning, one_call or bool(name))))


def _required(rules: Rules, reasoning: Reasoning | None, one_call: bool) -> list[str]:
    """The rules of an answer that is reasoning, perhaps, and one call or more."""
    call = f"{'opens ' if rules.opens else ''}body"
    calls = call if one_call or not rules.repeats else rf"{call} (GAP? {call})*"
    before = "" if reasoning is None else "reasoning GAP? "
    lines = [f"start: {before}{calls}", r"GAP: /\n{1,2}/", *rules.lines]
    if rules.opens:
        lines.append(f'opens: %mark "{rules.opens}"')
    return lines if reasoning is None else [*lines, *reasoning.rules()]


def after_reasoning(constraint: Form, template: str, prompt_end: str) -> Form:
    """A constraint of the answer behind the reasoning that the prompt has opened."""
    reasoning = Reasoning.of(template, prompt_end)
    if reasoning is None or not reasoning.is_open or constraint.trigger:
        return constraint
    return Form(constraint.kind, constraint.value, (), after=reasoning.closes)


def _name_of(choice: str | Mapping[str, Any] | None) -> str:
    """The tool that a choice names; "" for one that names none."""
    if isinstance(choice, str) or choice is None:
        return "" if choice in (None, "none", "auto", "required", "any") else str(choice)
    function = choice.get("function", choice)
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""
