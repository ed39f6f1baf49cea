"""What a context says, read back from its text with the forms of `wording` as patterns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from kvarn.evals.tasks import wording

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
PERSON = r"[A-Z][a-z]+(?: [A-Z]\.)? [A-Z][a-z]+"
PLACEHOLDERS = {
    "k": rf"(?:record {UUID}|[a-z]+(?: [a-z]+){{1,2}})",
    "v": rf"(?:\d{{5}}|\d{{7}}|{UUID})",
    "a": r"[a-z]+(?: [a-z]+){1,2}",
    "b": r"[a-z]+(?: [a-z]+){1,2}",
    "p": PERSON,
    "q": PERSON,
    "r": "[a-z]+",
    "x": r"[A-Za-z]+",
}


def pattern(form: str) -> re.Pattern[str]:
    """The form with a group for each placeholder; a second use refers to the first."""
    text, seen = re.escape(form), set()
    for name, what in PLACEHOLDERS.items():
        place = rf"\{{{name}\}}"
        if place in text:
            text = text.replace(place, f"(?P<{name}>{what})", 1)
            text = text.replace(place, f"(?P={name})")
            seen.add(name)
    return re.compile(rf"(?<![\w\"]){text}(?!\w)")


def said(forms: tuple[str, ...], text: str) -> Iterator[dict[str, str]]:
    """Every occurrence of any of the forms, with what stands in its places, in the order of the
    text; a form that is a part of a longer one does not count there."""
    matches = [match for form in forms for match in pattern(form).finditer(text)]
    for match in sorted(matches, key=lambda m: (m.start(), -m.end())):
        inside = any(
            o is not match and o.start() <= match.start() and match.end() <= o.end()
            for o in matches
        )
        if not inside:
            yield match.groupdict()


def asked(forms: tuple[str, ...], question: str) -> dict[str, str]:
    """What a question asks about: the places of the one form that it has as a whole."""
    (matches,) = (match for form in forms if (match := pattern(form).fullmatch(question)))
    return matches.groupdict()


def numbers_of(text: str, forms: tuple[str, ...] = wording.NUMBER_FACTS) -> dict[str, list[str]]:
    """Each thing and the numbers that it is said to have."""
    numbers = defaultdict(list)
    for fact in said(forms, text):
        numbers[fact["k"]].append(fact["v"])
    return numbers


def chains_of(text: str) -> dict[str, list[str]]:
    """Each number and the things that have it, by what is said of one thing and another."""
    first = {values[0]: thing for thing, values in numbers_of(text).items()}
    following = {link["a"]: link["b"] for link in said(wording.LINK_FACTS, text)}
    matches = {}
    for value, thing in first.items():
        chain = [thing]
        while chain[-1] in following:
            chain.append(following.pop(chain[-1]))
        matches[value] = chain
    assert not following, "links that no chain leads to, or in a circle"
    return matches
