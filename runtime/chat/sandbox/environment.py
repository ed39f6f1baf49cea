"""The Jinja environment for templates of model files, which are untrusted.

Renders like transformers' `apply_chat_template`: blocks trimmed, `tojson` without HTML escapes,
`raise_exception`, `strftime_now`, `break`/`continue`, `{% generation %}`. Jinja's sandbox keeps
templates away from Python. In addition, the number of steps and the sizes of a rendering are
limited. These checks give readable errors; whatever they miss is stopped by the limits of the
process that they run in.
"""

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, cast

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .checks import (
    check_counts,
    check_format,
    check_join,
    check_operands,
    check_size,
    check_text_method,
    whole,
)

# Filters whose numbers are widths or amounts.
_COUNTING_FILTERS = frozenset({"batch", "center", "indent", "slice", "truncate", "wordwrap"})
# Filters that turn any value into text.
_SHOWING_FILTERS = frozenset(
    {"e", "escape", "forceescape", "format", "lower", "pprint", "string", "title", "upper", "trim"}
    | {"capitalize", "replace", "striptags", "urlencode", "wordcount", "xmlattr", "safe"}
)


class Refusal(JinjaError):
    """The template itself called `raise_exception`."""


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for one template of at most `max_steps`; for one rendering at a time."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, max_steps: int) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            finalize=self._shown,
        )
        self.code_generator_class = _Generator
        self._max_steps = max_steps
        self.restart(datetime.now())
        self.filters = {name: _bounded(name, use, self) for name, use in self.filters.items()}
        self.filters |= {"tojson": self._tojson, "join": _bounded_join(self.filters["join"], self)}
        self.filters |= {_STEPS: self._steps_of, _CONCAT: self._concat, _WHOLE: whole}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
            "dict": _new_dict,
            "namespace": _Namespace,
        }

    def restart(self, now: datetime) -> None:
        """Starts the count for a new rendering; `now` is its time."""
        self._steps = 0
        self._now = now

    def step(self) -> None:
        """Counts one loop round or call; raises `SecurityError` beyond the limit."""
        self._steps += 1
        if self._steps > self._max_steps:
            raise SecurityError(f"more than {self._max_steps:,} steps: the template does not end")

    def counted(self, items: Iterator[Any]) -> Iterator[Any]:
        """`items`, one step each."""
        for item in items:
            self.step()
            yield item

    def weigh(self, value: Any) -> None:
        """Counts the parts of nested lists before they become text, shared ones each time."""
        waiting = [value]
        while waiting:
            top = waiting.pop()
            if isinstance(top, dict):
                waiting.extend(top.values())
            elif isinstance(top, list | tuple):
                waiting.extend(top)
            else:
                continue
            self.step()
            check_size(len(waiting))

    def _strftime_now(self, form: str) -> str:
        return self._now.strftime(form)

    def _shown(self, value: Any) -> Any:
        self.weigh(value)
        return value

    @pass_context
    def _steps_of(self, context: Context, items: Iterable[Any]) -> Iterator[Any]:
        return self.counted(iter(items))

    @pass_context
    def _concat(self, context: Context, parts: list[Any]) -> str:
        self.weigh(parts)
        texts = [str(part) for part in parts]
        check_size(sum(map(len, texts)))
        return "".join(texts)

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        self.weigh(value)
        check_counts((indent,))
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        __self.step()
        if isinstance(__obj, LoopContext) and args:
            args = (__self.counted(iter(args[0])), *args[1:])
        # The sandbox wraps str.format; the wrapped method knows its text.
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            __self.weigh([*args, *kwargs.values()])
            check_text_method(owner, method.__name__, [*args, *kwargs.values()])
        return whole(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            self.weigh(right)
        check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: object) -> None:
    raise Refusal(str(message))


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


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


# Limits that Jinja has no hook for: loops, `~` and `{% set %}` blocks go through these filters.
_STEPS, _CONCAT, _WHOLE = "_steps", "_concat", "_whole"


class _Generator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        node = _Limits().visit(node)
        node.set_environment(self.environment)
        super().visit_Template(node, frame)


class _Limits(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter(node.iter, _STEPS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), _CONCAT)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filter(node.filter, _WHOLE, node.lineno)
        return node


def _filter(inner: nodes.Node | None, name: str, line: int | None = None) -> nodes.Filter:
    line = line if inner is None else inner.lineno
    # Inside `{% set %}` blocks, the innermost filter has no operand: it takes the block's text.
    return nodes.Filter(cast(nodes.Expr | None, inner), name, [], [], None, None, lineno=line)


def _bounded(name: str, use: Callable[..., Any], sandbox: Sandbox) -> Callable[..., Any]:
    """A filter of Jinja that counts as a step and refuses huge amounts and results."""

    @functools.wraps(use)  # Jinja notes on the function that it wants the context passed
    def limited(*args: Any, **kwargs: Any) -> Any:
        sandbox.step()
        if name in _SHOWING_FILTERS:
            sandbox.weigh(list(args))
        if name in _COUNTING_FILTERS:
            check_counts([*args, *kwargs.values()])
        texts = [arg for arg in args if isinstance(arg, str)]
        if name == "replace" and len(texts) == 3:
            check_text_method(texts[0], "replace", texts[1:])
        if name == "format" and texts:
            check_format(texts[0], [*args[1:], *kwargs.values()])
        return whole(use(*args, **kwargs))

    return limited


def _bounded_join(use: Callable[..., Any], sandbox: Sandbox) -> Callable[..., Any]:
    @functools.wraps(use)
    def join(context: Any, value: Iterable[Any], d: str = "", attribute: Any = None) -> Any:
        items = list(value)
        sandbox.weigh(items)
        check_join(str(d), items)
        return use(context, items, d, attribute)

    return join
