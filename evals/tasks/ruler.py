"""RULER's thirteen tasks, worded by kvarn.

Source: Hsieh et al. 2024, RULER, table 5 and the settings in its synthetic.yaml. Most contexts have
one question, as in RULER; where a context holds several facts of a kind, each has a question.
"""

import uuid
from itertools import pairwise
from random import Random

from . import wording
from .documents import qa_single, qa_two
from .facts import Draw, listed, number_facts, number_questions, table
from .filler import Filler, Prose
from .names import numbers, things
from .sample import Part, Question, Sample, Task, begun, fitted, scatter
from .wording import worded

NOISE = Prose(
    [
        "The rain fell all night. The road was long. A cart went by. Nobody spoke. "
        "It was as it had always been. "
    ]
)
"""A few sentences, repeated."""
KEYS = VALUES = QUERIES = 4
"""Needles of multikey_1, values of multivalue, needles of multiquery."""
CHAIN = 5
"""Things in a chain of vt: one with a number, and four hops."""


def identifiers(rng: Random, n: int) -> list[str]:
    """n different random UUIDs."""
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(n)]


def records(rng: Random, n: int) -> list[str]:
    """n different things, each named by a UUID."""
    return [f"record {identifier}" for identifier in identifiers(rng, n)]


def niah_single_1(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """One needle, the number of a thing, in a few repeated sentences."""
    return _hidden(rng, n_chars, NOISE, things, numbers, 1)


def niah_single_2(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """One needle, the number of a thing, in filler."""
    return _hidden(rng, n_chars, filler, things, numbers, 1)


def niah_single_3(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """One needle, the UUID of a thing, in filler."""
    return _hidden(rng, n_chars, filler, things, identifiers, 1)


def niah_multikey_1(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Four needles in filler; a question asks for one."""
    return _hidden(rng, n_chars, filler, things, numbers, KEYS)


def niah_multikey_2(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Nothing but needles, the numbers of things; a question asks for one."""
    form = rng.choice(wording.NUMBER_FACTS)
    return table(rng, form, things, numbers, n_chars, n_questions)


def niah_multikey_3(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Nothing but needles, UUIDs that belong to UUIDs; a question asks for one."""
    form = rng.choice(wording.NUMBER_FACTS)
    return table(rng, form, records, identifiers, n_chars, n_questions)


def niah_multivalue(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Four numbers of one thing, in filler; the question asks for all of them."""
    (key,), values = things(rng, 1), numbers(rng, VALUES)
    asked = worded(rng, wording.SEVERAL_QUESTIONS, k=key)
    question = Question(asked, f" {listed(values)}.", tuple(values))
    facts = number_facts(rng, [key] * VALUES, values)
    return Sample(scatter(rng, facts, n_chars, filler), (question,))


def niah_multiquery(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Four needles in filler; the question asks for all of them."""
    keys, values = things(rng, QUERIES), numbers(rng, QUERIES)
    facts = number_facts(rng, keys, values)
    rng.shuffle(facts)
    names = listed([f"the {key}" for key in keys])
    question = Question(f"The numbers of {names} are", f" {listed(values)}.", tuple(values))
    return Sample(scatter(rng, facts, n_chars, filler), (question,))


def vt(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """A number is passed on four times, from thing to thing; the question asks for all five."""
    members, (value,) = things(rng, CHAIN), numbers(rng, 1)
    facts = number_facts(rng, members[:1], [value])
    for a, b in pairwise(members):
        facts.append(worded(rng, wording.LINK_FACTS, a=a, b=b))
    reply = " " + ", the ".join(members) + "."
    asked = worded(rng, wording.HOLDER_QUESTIONS, v=value)
    question = Question(asked, reply, tuple(members))
    return Sample(scatter(rng, facts, n_chars, NOISE), (question,))


def cwe(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """A numbered list of words; the question asks for the ten that occur ten times as often.

    They occur 30 times and the others 3 times, as in RULER, if the context is long enough.
    """
    common, text = fitted(rng, lambda n: _list_of(rng, n), max(40, n_chars // 16), 40, n_chars)
    question = Question(
        "Which ten words of the list come most often? They are", f" {listed(common)}.",
        tuple(common),
    )  # fmt: skip
    return Sample(begun([Part(text, False)]), (question,))


def fwe(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Made-up words; the question asks for the three most frequent ones.

    The k-th word has a frequency proportional to 1 / k². The first is dots, which do not count.
    """
    letters = "abcdefghijklmnopqrstuvwxyz"
    n = max(100, n_chars // 7)
    kinds = max(6, int((n * 6 / 9.87) ** 0.5))  # that occur at least once: n / ζ(2) / k² >= 1
    words = ["......"]
    while len(words) < kinds:
        word = "".join(rng.choices(letters, k=6))
        if word not in words:
            words.append(word)
    total = sum(k**-2 for k in range(1, kinds + 1))
    drawn = [word for k, word in enumerate(words, 1) for _ in range(max(1, int(n * k**-2 / total)))]
    rng.shuffle(drawn)
    often = words[1:4]
    question = Question(
        "Dots apart, which three words come most often? They are", f" {listed(often)}.",
        tuple(often),
    )  # fmt: skip
    return Sample(begun([Part(" ".join(drawn), False)]), (question,))


def _list_of(rng: Random, n: int) -> tuple[list[str], str]:
    """The ten words that occur most often, and a text of about n numbered words."""
    often = min(30, n // 20)
    seldom = max(1, often // 10)
    words = [word.replace(" ", "-") for word in things(rng, 10 + (n - 10 * often) // seldom)]
    drawn = words[:10] * often + words[10:] * seldom
    rng.shuffle(drawn)
    return words[:10], " ".join(f"{i}. {word}" for i, word in enumerate(drawn, 1))


def _hidden(rng: Random, n_chars: int, filler: Filler, keys: Draw, values: Draw, n: int) -> Sample:
    """n needles in filler, each asked for."""
    named, given = keys(rng, n), values(rng, n)
    facts = number_facts(rng, named, given)
    questions = number_questions(rng, named, given, n)
    return Sample(scatter(rng, facts, n_chars, filler), questions)


RULER: dict[str, Task] = {
    "niah_single_1": niah_single_1,
    "niah_single_2": niah_single_2,
    "niah_single_3": niah_single_3,
    "niah_multikey_1": niah_multikey_1,
    "niah_multikey_2": niah_multikey_2,
    "niah_multikey_3": niah_multikey_3,
    "niah_multivalue": niah_multivalue,
    "niah_multiquery": niah_multiquery,
    "vt": vt,
    "cwe": cwe,
    "fwe": fwe,
    "qa_1": qa_single,
    "qa_2": qa_two,
}
"""RULER's name → task."""
