"""Directives in Lark grammars, for texts that some vocabularies have as control tokens.

    NAME: %mark "text"      the text, or the control token with this spelling
    NAME: %until "text"     any text up to and with it

llguidance never lets a text match a control token. Which markers are control tokens only the
vocabulary tells, so they are put in when it is known. A directive is the whole rule, on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

_DIRECTIVE = re.compile(r'^([a-z]\w*)\s*:\s*%(mark|until)\s+("(?:[^"\\]|\\.)*")\s*$', re.MULTILINE)
ANY_TEXT = r"/(?s:.)*/"


def expanded(lark: str, control: Mapping[str, int]) -> str:
    """The grammar without directives; control: control tokens by their spelling."""

    def rule(match: re.Match[str]) -> str:
        name, kind, literal = match.groups()
        token = control.get(json.loads(literal))
        if kind == "mark":
            return f"{name}: {literal if token is None else _tokens([token])}"
        if token is None:
            return f"{name}[lazy]: {ANY_TEXT} {literal}"
        return f"{name}: {_skipped(control, [token])}{ANY_TEXT} {_tokens([token])}"

    return _DIRECTIVE.sub(rule, lark)


def triggered(triggers: Sequence[str], body: str, control: Mapping[str, int]) -> str:
    """Any text, in which `body`, the name of a grammar, follows each trigger."""
    tokens = [control[text] for text in triggers if text in control]
    skipped = _skipped(control, tokens)
    rules = [f"start: (call)* {skipped}{ANY_TEXT}", f"call: trigger @{body}"]
    ways = []
    for i, text in enumerate(triggers):
        if text in control:
            ways.append(f"{skipped}{ANY_TEXT} {_tokens([control[text]])}")
        else:
            rules.append(f"trigger_{i}[lazy]: {ANY_TEXT} {json.dumps(text)}")
            ways.append(f"{skipped}trigger_{i}")
    rules.append(f"trigger: {' | '.join(ways)}")
    return "\n".join(rules)


def _skipped(control: Mapping[str, int], ends: Sequence[int]) -> str:
    """Any control tokens but `ends`, each behind any text."""
    others = sorted(set(control.values()) - set(ends))
    return f"({ANY_TEXT} {_tokens(others)})* " if others else ""


def _tokens(ids: Iterable[int]) -> str:
    """One of some tokens, as a set of ranges."""
    ranges: list[list[int]] = []
    for token in ids:
        if ranges and ranges[-1][1] == token - 1:
            ranges[-1][1] = token
        else:
            ranges.append([token, token])
    return "<[" + ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in ranges) + "]>"
