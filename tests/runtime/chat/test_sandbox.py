"""Templates that reach for Python, or would run and grow without end."""

import pytest

from kvarn.runtime.chat.sandbox import renderer
from kvarn.runtime.chat.sandbox.errors import TemplateError
from kvarn.runtime.chat.sandbox.limits import Limits
from kvarn.runtime.chat.template import ChatTemplate


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


TWICE = "{% for i in range(99) %}{% set ns.s = ns.s OP ns.s %}{% endfor %}{{ ns.s | length }}"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{{ 'x' * 10**10 }}",
        "{{ [0] * 10**10 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ 'x' | center(10**10) }}",
        "{{ 'x'.ljust(10**10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '{:>9999999999}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 9999999999) }}",
        "{{ ('x' * 10**6) | replace('x', 'x' * 10**6) }}",
        "{{ ('x' * 10**6).replace('x', 'x' * 10**6) }}",
        "{{ range(99999) | join('x' * 10**6) }}",
        "{{ (['x' * 10**6] * 10**6) | join }}",
        "{{ ''.join(['x' * 10**6] * 10**6) }}",
        "{{ 'x'.translate({120: 'y' * 10**6}) }}",
        "{% set ns = namespace(s='xx') %}" + TWICE.replace("OP", "~"),
        "{% set ns = namespace(s='xx') %}" + TWICE.replace("OP", "+"),
        "{% set ns = namespace(s=[1]) %}" + TWICE.replace("OP", "+"),
    ]
    + [
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}"
        "{% endfor %}{{ ns.s SHOWN }}".replace("SHOWN", shown)
        for shown in ("| tojson", "", "| string", "~ 'x'", "| join", "| pprint")
    ]
    + [
        "{% set ns = namespace(s='xx') %}{% for i in range(99) %}{% set s %}{{ ns.s }}{{ ns.s }}"
        "{% endset %}{% set ns.s = s %}{% endfor %}",
        "{% for x in [range(9999)] recursive %}{{ loop([range(9999)] * 9999) }}{% endfor %}",
    ],
)
def test_runaway_templates_end(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Smaller limits keep the test short; what is refused is the same. The checks see it coming: the
    # process that renders lives on.
    monkeypatch.setattr(renderer, "Limits", lambda: Limits(steps=100_000))
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    template.start()
    worker = template._renderer._worker
    with pytest.raises(TemplateError):
        template.render([{"role": "user", "content": "hi"}])
    assert template._renderer._worker is worker and worker.is_alive
