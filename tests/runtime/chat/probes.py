"""Templates that want memory, time or a way out: what nobody should be able to take.

As a program it lists them; `python probes.py NAME …` renders those that are named and prints what
each took, measured on the processes that rendered them. What Linux says of a process's memory
counts that of the one that started it, too: this one stays small.
"""

# ruff: noqa: E501  (a probe a line)

import json
import resource
import sys
import time

BIG = "{% set big = 'x' * 10**6 %}"
HUGE = "{% set huge = 'x' * (15 * 10**6) %}"
DOUBLING = (
    "{% set ns = namespace(s=START) %}{% for i in range(60) %}{% set ns.s = STEP %}{% endfor %}"
)


def doubling(start: str, step: str, end: str = "") -> str:
    """Sixty times over, each result goes in again."""
    return DOUBLING.replace("START", start).replace("STEP", step) + end


MEMORY = {
    "bytes times": "{{ ('a'.encode() * 10**10) | length }}",
    "bytes times twice": "{% set b = 'a'.encode() * (15 * 10**6) %}{{ [b + b, b + b + b, b * 16] | length }}",
    "bytes plus": doubling("'a'.encode()", "ns.s + ns.s"),
    "bytes join": BIG + "{{ 'a'.encode().join([big.encode()] * 10**5) }}",
    "bytes ljust": "{{ 'a'.encode().ljust(10**10) }}",
    "bytes center": "{{ 'a'.encode().center(9 * 10**9) }}",
    "bytes zfill": "{{ 'a'.encode().zfill(10**10) }}",
    "bytes expandtabs": "{{ '\t'.encode().expandtabs(2 * 10**9) }}",
    "bytes replace": BIG + "{{ big.encode().replace('x'.encode(), big.encode()) }}",
    "bytes hex": HUGE
    + "{% for i in range(9) %}{% set huge = huge.encode().hex(':') %}{% endfor %}",
    "bytes repr": HUGE + "{{ (huge.encode() ~ huge.encode()) ~ [huge.encode()] * 99 }}",
    "bytes translate": BIG + "{{ [big.encode().translate(none)] * 10**9 }}",
    "str ljust": "{{ 'a'.ljust(10**10) }}",
    "str rjust": "{{ 'a'.rjust(10**6).rjust(10**9) }}",
    "str center": "{{ 'a'.center(10**10, '\U0001f600') }}",
    "str zfill": "{{ '1'.zfill(10**11) }}",
    "str replace": BIG + "{{ big.replace('', big) }}",
    "str join": BIG + "{{ big.join([big] * 1000) }}",
    "str join a generator": BIG
    + "{{ ''.join(range(10**5) | map('string') | map('center', 10**6)) }}",
    "str join a text": BIG + "{{ big.join(big) }}",
    "str expandtabs": "{{ ('\t' * 10**5).expandtabs(10**6) }}",
    "str translate": "{{ 'x'.translate({120: 'y' * 10**7}) }}",
    "str splitlines": "{% set l = ('\n' * 15 * 10**6).splitlines() %}{{ l | length }}",
    "str split": "{% set l = ('a ' * 7 * 10**6).split() %}{{ l | length }}",
    "str encode utf-32": HUGE + "{{ [huge.encode('utf-32'), huge.encode('utf-32')] | length }}",
    "str escapes": "{{ ('\U0001f600' * 10**7).encode('unicode-escape') | length }}",
    "str upper": "{% set s = 'ß' * (15 * 10**6) %}{{ s.upper().upper() ~ s.upper() ~ s.upper() }}",
    "str format of many": BIG + "{{ ('{0}' * 25000).format(big) }}",
    "str format wide": "{{ '{:999999999999}'.format(1) }}",
    "str format of a float": "{{ '{:.999999f}'.format(1.5) * 10**6 }}",
    "str format nested": "{{ '{0:{1}}'.format('a', 10**11) }}",
    "str format_map": BIG + "{{ ('{a}' * 25000).format_map({'a': big}) }}",
    "str percent of many": BIG + "{{ ('%(a)s' * 25000) % {'a': big} }}",
    "str percent wide": "{{ '%1000000000f' % 1.0 }}",
    "str percent star": "{{ '%*s' % (10**10, 'a') }}",
    "str percent precise": "{{ '%.999999999f' % 1.0 }}",
    "str times": "{{ 'a' * 10**10 }}",
    "str times a message": "{{ messages[0].content * 10**9 }}",
    "str pieces": "{% for i in range(10**5) %}{{ 'x' * 10**6 }}{% endfor %}",
    "str wide characters": "{% for i in range(99) %}{{ '\U0001f600' * 10**6 }}{% endfor %}",
    "str kept": "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + ['x' * 10**6 ~ i] %}{% endfor %}",
    "filter format": BIG + "{{ ('%s' * 25) | format(big, big, big, big, big) }}",
    "filter replace": BIG + "{{ big | replace('x', big) }}",
    "filter join": BIG + "{{ range(10**5) | join(big) }}",
    "filter join attribute": BIG + "{{ ([{'a': big}] * 10**5) | join(attribute='a') }}",
    "filter indent": "{{ ('\n' * 10**6) | indent(10**6, true, true) }}",
    "filter indent by text": BIG + "{{ ('\n' * 10**5) | indent(big, true, true) }}",
    "filter wordwrap": BIG + "{{ ('a ' * 10**5) | wordwrap(1, true, big) }}",
    "filter center": "{{ 'x' | center(10**10) }}",
    "filter truncate": "{{ 'x' * 10**6 | truncate(10**10, true, 'x' * 10**6) }}",
    "filter batch": "{{ range(9) | batch(10**9, 'x') | list | length }}",
    "filter slice": "{{ range(9) | slice(10**9) | list | length }}",
    "filter tojson indent": doubling("[1]", "[ns.s, ns.s]", "{{ ns.s | tojson(indent=10**6) }}"),
    "filter tojson deep": "{{ ([[[[[[1]]]]]] * 10**5) | tojson(indent=10**5) }}",
    "filter tojson indent text": BIG + "{{ ([1] * 10**5) | tojson(indent=big) }}",
    "filter tojson separators": BIG + "{{ ([1] * 10**5) | tojson(separators=(big, big)) }}",
    "filter pprint": doubling("[1]", "[ns.s, ns.s]", "{{ ns.s | pprint }}"),
    "filter xmlattr": HUGE + "{{ {'a': '<' * 10**7, 'b': '\"' * 10**7, 'c': huge} | xmlattr }}",
    "filter escape": "{{ ('\"' * 15 * 10**6) | escape | forceescape | forceescape }}",
    "filter urlize": "{{ ('http://a.b/ ' * 10**6) | urlize(10**6, true, '_' * 10**6) }}",
    "filter urlencode": "{{ ('\U0001f600' * 10**7) | urlencode | urlencode }}",
    "filter map of lists": "{{ range(10**5) | map('string') | map('list') | map('center', 10**5) | list }}",
    "filter sum of lists": "{{ ([range(10**5) | list] * 10**5) | sum(start=[]) | length }}",
    "filter list of lists": "{{ ([range(10**5)] * 10**5) | map('list') | list | length }}",
    "filter groupby": "{{ range(10**5) | groupby('real') | map('string') | map('center', 9999) | list }}",
    "filter dictsort": "{{ dict(range(10**5) | map('string') | map('list')) | dictsort | list * 10**6 }}",
    "filter chain": BIG + "{{ big | list | map('center', 10**6) | join | list | tojson }}",
    "list times": "{{ [0] * 10**10 }}",
    "list plus": doubling("[1]", "ns.s + ns.s"),
    "list nested": doubling("[1]", "[ns.s, ns.s]", "{{ ns.s }}"),
    "list of ranges": "{{ (range(10**5) | list) * 10**5 }}",
    "tuple times": "{{ (1, 2, 3) * 10**9 }}",
    "dict nested": doubling("{'a': 1}", "{'a': ns.s, 'b': ns.s}", "{{ ns.s }}"),
    "dict growing": doubling("{'a': 1}", "dict(ns.s, **{'k' ~ i: 'x' * 10**6 * 10})", "{{ ns.s }}"),
    "namespace growing": "{% set ns = namespace() %}"
    + "".join(f"{{% set ns.a{i} = 'x' * (10**7 + {i}) %}}" for i in range(99)),
    "cycler": "{% set c = cycler(*([1] * 10**7)) %}{{ c.next() }}",
    "cycler of many": "{% set c = cycler(*(range(99999) | map('center', 99999))) %}{{ c.next() }}",
    "joiner": "{% set j = joiner('x' * 10**6) %}{% for i in range(9999) %}{{ j() }}{% endfor %}",
    "lipsum": "{{ lipsum(n=10**7, max=10**6) }}",
    "set block": "{% set s %}x{% endset %}"
    + "{% set s %}{{ s }}{{ s }}{% endset %}" * 60
    + "{{ s }}",
    "filter block": "{% filter replace('x', 'x' * 10**6) %}{{ 'x' * 10**6 }}{% endfilter %}",
    "macro results": "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% else %}{{ 'x' * 999 }}{% endif %}{% endmacro %}{{ m(60) }}",
    "macro arguments": "{% macro m() %}{{ varargs | length }}{% endmacro %}{{ m(*([messages] * 10**8)) }}",
    "call block": "{% macro m() %}{{ caller() ~ caller() }}{% endmacro %}"
    + "{% call m() %}" * 40
    + "{{ 'x' * 999 }}"
    + "{% endcall %}" * 40,
    "loop recursion": "{% for x in [[1]] recursive %}{{ loop([x, x, x]) ~ loop([x, x]) }}{% endfor %}",
    "integer power": "{{ 9 ** 9 ** 9 }}",
    "integer squares": doubling("9", "ns.s * ns.s"),
    "integer text": doubling("9 ** 1000", "ns.s * ns.s", "{{ ns.s }}"),
    "integer of a text": "{{ ('9' * 10**7) | int }}",
    "integer shift by power": "{{ (2 ** 1000) ** 1000 ** 1000 }}",
    "strftime": "{{ strftime_now('%Y' * 10**6) }}",
    "strftime wide": "{{ strftime_now('%0999999999d') }}",
    "raise_exception": "{{ raise_exception('x' * 10**7 * 10) }}",
    "refusal with much": "{{ raise_exception(('x' * 15 * 10**6) ~ '\n\x1b[2J') }}",
}

TIME = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loop over a filter": "{% for i in range(10**5) | map('string') | map('list') | map('center', 99) %}{% endfor %}",
    "slow steps": "{% for i in range(99999) %}{% set x = range(99999) | list %}{% endfor %}",
    "slow sums": "{% for i in range(99999) %}{% set x = range(99999) | sum %}{% endfor %}",
    "sorts": "{% for i in range(99999) %}{% set x = range(99999) | sort(reverse=true) | list %}{% endfor %}",
    "sort of everything": "{{ range(99999) | map('string') | list | sort | unique | list | length * 1 }}",
    "unique": "{% for i in range(9999) %}{% set x = ([range(9999) | list] * 99) | unique | list %}{% endfor %}",
    "find": "{% set s = 'a' * 10**6 %}{% for i in range(99999) %}{% set x = s.find('a' * 999 ~ 'b') %}{% endfor %}",
    "count": "{% set s = 'a' * 10**7 %}{% for i in range(99999) %}{% set x = s.count('a' * 10**5 ~ 'b') %}{% endfor %}",
    "in": "{% set s = ('a' * 10**6 ~ 'b') * 9 %}{% for i in range(99999) %}{% if ('a' * 10**6 ~ 'c') in s %}{% endif %}{% endfor %}",
    "in a list": "{% set l = range(10**5) | list %}{% for i in range(10**5) %}{% if -1 in l %}{% endif %}{% endfor %}",
    "compare lists": doubling("[1]", "[ns.s, ns.s]", "{% set a = ns.s %}")
    + doubling("[1]", "[ns.s, ns.s]", "{{ ns.s == a }}"),
    "compare strings": "{% for i in range(99999) %}{% if 'a' * 10**7 == 'a' * 10**7 ~ 'b' %}{% endif %}{% endfor %}",
    "striptags": "{{ ('<' * 10**6) | striptags }}",
    "striptags comments": "{{ ('<!--' * 10**6) | striptags }}",
    "urlize dots": "{{ ('a.' * 10**6 ~ '(' * 10**6) | urlize }}",
    "wordwrap": "{{ ('a' * 10**6) | wordwrap(1) }}",
    "title": "{% for i in range(9999) %}{% set x = ('a b ' * 10**6) | title %}{% endfor %}",
    "big division": doubling("9 ** 1000", "ns.s * ns.s", "{{ ns.s // 7 % 13 }}"),
    "big digits": "{{ (9 ** 1000) ** 1000 | string }}",
    "integers that grow": "{% set ns = namespace(a=1) %}{% for i in range(1, 10**5) %}{% set ns.a = ns.a * (i + 10**300) %}{% endfor %}",
    "macro recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(200) }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "endless loop recursion": "{% for x in [1] recursive %}{{ loop([x]) }}{% endfor %}",
    "deep recursion": "{% macro m(n) %}{{ caller() if caller else '' }}{% call m(n + 1) %}{{ n }}{% endcall %}{% endmacro %}{{ m(0) }}",
    "strings that grow": "{% set ns = namespace(s='') %}{% for i in range(99999) %}{% set ns.s = ns.s ~ 'x' * 99 %}{% endfor %}",
    "self": "{% block a %}{{ self.a() }}{% endblock %}",
    "deep list to text": "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}",
    "deep list to json": "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s | tojson }}",
    "deep list compared": "{% set ns = namespace(s=[], t=[]) %}{% for i in range(99999) %}{% set ns.s = [ns.s] %}{% set ns.t = [ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
}

COMPILING = {
    "parentheses": "{{ " + "(" * 10**5 + "1" + ")" * 10**5 + " }}",
    "brackets": "{{ " + "[" * 10**5 + "]" * 10**5 + " }}",
    "braces": "{{ " + "{1:" * 10**5 + "1" + "}" * 10**5 + " }}",
    "minus": "{{ " + "-" * 10**5 + "1 }}",
    "not": "{{ " + "not " * 10**5 + "1 }}",
    "plus": "{{ 1" + " + 1" * 10**5 + " }}",
    "and": "{{ 1" + " and 1" * 10**5 + " }}",
    "tilde": "{{ 'a'" + " ~ 'a'" * 10**5 + " }}",
    "filters": "{{ 1" + " | abs" * 10**5 + " }}",
    "attributes": "{{ a" + ".b" * 10**5 + " }}",
    "calls": "{{ a" + "()" * 10**5 + " }}",
    "subscripts": "{{ a" + "[0]" * 10**5 + " }}",
    "comparisons": "{{ 1" + " < 1" * 10**5 + " }}",
    "conditions": "{{ 1" + " if 1 else 1" * 5 * 10**4 + " }}",
    "statements": "{% set a = 1 %}" * 69_000,
    "outputs": "{{ a }}" * 10**5,
    "names": "".join(f"{{% set a{i} = b{i} %}}" for i in range(40_000)),
    "nested ifs": "{% if a %}" * 20_000 + "{% endif %}" * 20_000,
    "nested loops to compile": "{% for i in a %}" * 10_000 + "{% endfor %}" * 10_000,
    "unclosed loops": "{% for i in a %}" * 60_000,
    "macros": "{% macro a() %}" * 10_000 + "{% endmacro %}" * 10_000,
    "calls in calls": "{% call a() %}" * 10_000 + "{% endcall %}" * 10_000,
    "blocks": "".join(f"{{% block b{i} %}}{{% endblock %}}" for i in range(25_000)),
    "elifs": "{% if a %}" + "{% elif a %}" * 80_000 + "{% endif %}",
    "folding a product": "{{ 'a' * 10**10 }}{{ [0] * 10**10 }}",
    "folding a power": "{{ 9 ** 9 ** 9 ** 9 }}",
    "folding products": "{{ ('a' * 10**6) * 10**6 * 10**6 }}",
    "folding a filter": "{{ 'a' | center(10**10) }}{{ '%*d' | format(10**10, 1) }}",
    "folding a list": "{{ [" + "1," * 4 * 10**5 + "] }}",
    "folding squares": "{{ " + "(" * 90 + "9 ** 99" + " ** 9)" * 90 + " }}",
    "a dict of many": "{{ {" + ",".join(f"'{i}':{i}" for i in range(70_000)) + "} }}",
    "a long name": "{{ " + "a" * 10**6 + " }}",
    "a long number": "{{ " + "9" * 10**6 + " }}",
    "a long text": "{{ '" + "\\U0001f600" * 10**5 + "' }}",
    "a long float": "{{ 1." + "9" * 10**6 + "e999999999 }}",
    "a long comment": "{# " + "a" * 10**6,
    "tags half open": "{%" * 5 * 10**5,
    "whitespace control": "{%-" + " " * 10**6,
    "lines": "\n" * 10**6 + "{{ a",
    "raw": "{% raw %}" + "{" * 10**6,
    "100 MB of source": "{{ 1 }}",  # as often as it takes, see `run`
    "arguments": "{{ a(" + "1," * 3 * 10**5 + "1) }}",
    "keyword arguments": "{{ a(" + ",".join(f"k{i}=1" for i in range(60_000)) + ") }}",
}

ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class by filter": "{{ '' | attr('__class__') | attr('__mro__') }}",
    "class by item": "{{ ''['__class__']['__base__'] }}",
    "class by map": "{{ ['a'] | map(attribute='__class__') | join }}",
    "class by sum": "{{ [''] | sum(attribute='__class__', start='') }}",
    "class by groupby": "{{ [''] | groupby('__class__') | list | length > 9 or '' }}",
    "class by format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "class by format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "class by a kept format": "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "class by attr and format": "{{ ('{0.__class__}' | attr('format'))(1) }}",
    "class by item and format": "{{ '{0.__class__}'['format'](1) }}",
    "class by map and format": "{{ ['{0.__class__}'] | map(attribute='format') | map('trim') | list | length > 9 or '' }}",
    "class by filter format": "{{ '{0.__class__}' | format(1) | replace('{0.__class__}', '') }}",
    "globals of a function": "{{ raise_exception.__globals__ }}",
    "globals of strftime": "{{ strftime_now.__func__.__globals__ }}{{ strftime_now.__self__ }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "globals of a cycler": "{{ cycler.__init__.__globals__.os }}",
    "globals of a joiner": "{{ joiner.__init__.__globals__ }}",
    "globals of a namespace": "{{ namespace.__init__.__globals__ }}",
    "globals of undefined": "{{ nothing.__class__.__init__.__globals__ }}",
    "globals of a loop": "{% for i in [1] %}{{ loop.__class__ }}{{ loop._iterator.gi_frame }}{% endfor %}",
    "self": "{{ self.__init__.__globals__ }}{{ self._TemplateReference__context }}",
    "context": "{{ self._TemplateReference__context.environment }}",
    "generator frame": "{{ (messages | map('string')).gi_frame.f_globals }}",
    "generator frame of ours": "{{ (messages | _steps).gi_frame.f_back }}",
    "generator code": "{{ (messages | select).gi_code.co_consts }}",
    "coroutine": "{{ (messages | map('string')).cr_frame }}{{ messages.ag_frame }}",
    "function code": "{{ raise_exception.__code__ }}{{ raise_exception.func_globals }}",
    "builtins": "{{ __builtins__ }}{{ __import__ }}{{ self.__builtins__ }}",
    "environment": "{{ environment }}{{ environment.globals }}",
    "mutated messages": "{{ messages.append(1) }}",
    "mutated dict": "{{ messages[0].update({'a': 1}) }}",
    "mutated namespace": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__ }}",
    "namespace attributes": "{% set ns = namespace(__init__=1) %}{{ ns.__init__ }}",
    "namespace mutation": "{% set raise_exception.__name__ = 1 %}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "from import": "{% from 'os' import system %}{{ system }}",
    "extends": "{% extends '/etc/passwd' %}",
    "include many": "{% include ['/etc/passwd', '/etc/hosts'] ignore missing %}",
    "codec": "{{ 'x'.encode('zlib') }}",
    "codec that imports": "{{ 'x'.encode('idna') | length > 9 or '' }}{{ 'x'.encode('os') }}",
    "surrogates": "{{ '\\ud800' | replace('\\ud800', '') }}",
    "keywords": "{{ dict(__class__=1).__class__ }}",
    "tests": "{{ (1 is sameas(1).__class__) or '' }}",
}

PROBES = {
    f"{kind}: {name}": source
    for kind, group in (
        ("memory", MEMORY),
        ("time", TIME),
        ("compiling", COMPILING),
        ("escape", ESCAPES),
    )
    for name, source in group.items()
}


def run(name: str) -> dict[str, object]:
    """What the probe gave, and what its process took: seconds of CPU, and bytes up to now."""
    from kvarn.runtime.chat import ChatTemplate, TemplateError

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    source = PROBES[name] * (15_000_000 if name.endswith("100 MB of source") else 1)
    before, started = spent(), time.monotonic()
    try:
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
        text, error = template.render([{"role": "user", "content": "hi"}]), None
        template._renderer._worker.end()
    except TemplateError as caught:
        text, error = "", str(caught)
        template = None  # which ends its process
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "name": name,
        "text": text[:1000],
        "length": len(text),
        "error": error,
        "cpu": spent() - before,
        "wall": time.monotonic() - started,
        "memory": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit,
        "ours": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


if __name__ == "__main__":
    for probe in sys.argv[1:]:
        print(json.dumps(run(probe)), flush=True)
    if not sys.argv[1:]:
        print("\n".join(PROBES))
