"""Templates that reach for Python, or would run and grow without end."""

import pytest

from kvarn.runtime.chat import ChatTemplate, TemplateError
from kvarn.runtime.chat.sandbox import renderer
from kvarn.runtime.chat.sandbox.limits import Limits


def render(source: str) -> str:
    messages = [{"role": "user", "content": "hi"}]
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ render.__globals__ }}{{ ''.format.__self__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{% set ns = namespace(__class__=1) %}",
        "{{ strftime_now.__closure__ }}",
    ],
)
def test_templates_cannot_reach_python(source: str) -> None:
    # Jinja lets an unsafe attribute be undefined; it only fails when something is done with it.
    try:
        assert render(source) == ""
    except TemplateError as error:
        assert "unsafe" in str(error) or "underscore" in str(error) or "undefined" in str(error)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ 'x' * 10**10 }}", "256 MB of memory"),
        ("{{ '{:>9999999999}'.format(1) }}", "256 MB of memory"),
        ("{{ ([messages[0].content * 10**6] * 1000) | join }}", "256 MB of memory"),
        ("{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}", "16,777,216 characters"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "1 s of CPU time",
        ),
        ("{{ 9 ** (9 ** 9) }}", "1 s of CPU time"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_runaway_templates_end(source: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Smaller limits keep the test short.
    limits = Limits(compile_seconds=1, render_seconds=1)
    monkeypatch.setattr(renderer, "Limits", lambda: limits)
    with pytest.raises(TemplateError, match=reason):
        render(source)
