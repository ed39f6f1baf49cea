"""The Jinja environment for templates of model files, which are untrusted.

Renders like transformers' `apply_chat_template`: blocks trimmed, `tojson` without HTML escapes,
`raise_exception`, `strftime_now`, `break`/`continue`, `{% generation %}`. Jinja's sandbox keeps
templates away from Python. The process limits their time and memory (`worker`).
"""

import json
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


class Refusal(TemplateError):
    """The template itself called `raise_exception`."""


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one template. `now` is the time that `strftime_now` writes."""

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        self.now = datetime.now()
        self.filters["tojson"] = _tojson
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
            "namespace": _Namespace,
        }

    def _strftime_now(self, form: str) -> str:
        return self.now.strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: object) -> None:
    raise Refusal(str(message))


class _Namespace(Namespace):
    """`namespace(...)`, without names that begin with an underscore, as in transformers."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the name {name!r} begins with an underscore")


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's text, which stays as it is."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_pass"), [], [], body).set_lineno(line)

    def _pass(self, caller: Macro) -> str:
        return str(caller())
