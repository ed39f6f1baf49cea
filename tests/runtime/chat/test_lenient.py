"""Conversations for templates that refuse them. Oracles: jinja2 on the form written by hand, and
the parser of calls for the form that tools ask for."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from kvarn.runtime.chat.lenient import BETWEEN, merged, rendered, with_tools
from kvarn.runtime.chat.sandbox.errors import TemplateError
from kvarn.runtime.chat.template import ChatTemplate
from kvarn.runtime.chat.tool_calls import CallBegins, parser_for

# Gemma's rules: no system message, no tools, the user and the model in turn.
STRICT = (
    "{%- if messages[0].role == 'system' -%}{{ raise_exception('no system') }}{%- endif -%}"
    "{%- for m in messages -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}"
    "{{ raise_exception('roles must alternate') }}{%- endif -%}"
    "[{{ m.role }}]{{ m.content }}{%- endfor -%}"
)
# Mistral's: a system message at the start, then the user and the model in turn, and tools.
SYSTEM = (
    "{%- set ns = namespace(user=false) -%}"
    "{%- for m in messages -%}{%- if m.role == 'system' and not loop.first -%}"
    "{{ raise_exception('a late system message') }}{%- endif -%}"
    "{%- if m.role == 'user' -%}{%- if ns.user -%}{{ raise_exception('two in a row') }}"
    "{%- endif -%}{%- set ns.user = true -%}{%- else -%}{%- set ns.user = false -%}{%- endif -%}"
    "[{{ m.role }}]{{ m.content }}{{ m.tool_calls | length if m.tool_calls }}{%- endfor -%}"
)
CALL: Any = {"id": "1", "function": {"name": "read", "arguments": {"path": "å.py"}}}


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


AGENT = [
    said("system", "S1"),
    said("system", "S2"),
    said("user", "U1"),
    said("system", "S3"),
    said("user", "U2"),
    said("assistant", "A", tool_calls=[CALL]),
    said("tool", "R1", tool_call_id="1"),
    said("tool", "R2", tool_call_id="2"),
]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token=None, eos_token=None)


def by_jinja(source: str, messages: list[Any]) -> str:
    return jinja2.Environment().from_string(source).render(messages=messages)


def test_a_template_that_takes_all_gets_all() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    assert rendered(AGENT, template(source).render) == by_jinja(source, AGENT)


def test_messages_of_one_role_become_one() -> None:
    by_hand = [
        said("system", f"S1{BETWEEN}S2"),
        said("user", f"U1{BETWEEN}S3{BETWEEN}U2"),
        *AGENT[5:],
    ]
    assert merged(AGENT) == by_hand
    assert rendered(AGENT, template(SYSTEM).render) == by_jinja(SYSTEM, by_hand)


def test_the_strictest_templates_get_texts_in_turn() -> None:
    call = '{"name": "read", "arguments": {"path": "å.py"}}'
    by_hand = [
        said("user", BETWEEN.join(["S1", "S2", "U1", "S3", "U2"])),
        said("assistant", f"A\n{call}"),
        said("user", f"R1{BETWEEN}R2"),
    ]
    assert rendered(AGENT, template(STRICT).render) == by_jinja(STRICT, by_hand)


def test_a_template_that_refuses_all_says_why_first() -> None:
    with pytest.raises(TemplateError, match="no, S1"):
        rendered(AGENT, template("{{ raise_exception('no, ' + messages[0].content) }}").render)


@pytest.mark.parametrize("messages", [AGENT, AGENT[2:], [said("system", ""), AGENT[2]]])
def test_tools_are_told_in_the_form_that_is_read(messages: list[Any]) -> None:
    tool: Any = {"type": "function", "function": {"name": "read", "parameters": {}}}
    told = with_tools(messages, [tool])
    assert [one["role"] for one in told].count("system") >= 1
    text = told[0]["content"]
    assert text.startswith(messages[0]["content"] if messages[0]["role"] == "system" else "You")
    assert '{"name": "read", "parameters": {}}' in text
    form = next(line for line in text.splitlines() if line.startswith('{"name": NAME'))
    answer = form.replace("NAME", '"read"').replace("{…}", '{"path": "a.py"}')
    parser = parser_for(STRICT, [tool])
    events = [*parser.push(answer), *parser.finish()]
    assert [one.name for one in events if isinstance(one, CallBegins)] == ["read"]
