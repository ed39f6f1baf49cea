"""Single facts to recall: needles in filler, and tables that consist only of facts."""

from collections.abc import Callable, Sequence
from random import Random

from . import wording
from .filler import Filler
from .names import numbers, things
from .sample import Part, Question, Sample, scatter
from .wording import worded

Draw = Callable[[Random, int], list[str]]
"""(rng, n) → n different keys or values."""

FACT_CHARS = 48
"""Length of a fact in a sentence, about."""
LEAST_FILLER = 4.0
"""Least characters of filler per character of facts, unless a generator is told otherwise."""


def needle(
    rng: Random, n_chars: int, n_questions: int, filler: Filler, least_filler: float = LEAST_FILLER
) -> Sample:
    """Numbers of things, in sentences of many forms, in filler; a question asks for one of them.

    There are as many needles as questions, or fewer, so that there is at least least_filler times
    as much filler.
    """
    n = max(1, min(n_questions, facts_in(n_chars, least_filler)))
    keys, values = things(rng, n), numbers(rng, n)
    facts = number_facts(rng, keys, values)
    questions = number_questions(rng, keys, values, n_questions)
    return Sample(scatter(rng, facts, n_chars, filler), questions)


def kv(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """A table of things and numbers fills the context; a question asks for one number.

    Half of the tables have bare rows, the others sentences.
    """
    form = rng.choice(rng.choice((wording.TABLE_FACTS, wording.NUMBER_FACTS)))
    return table(rng, form, things, numbers, n_chars, n_questions)


def records(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """A table in a machine format: JSON, CSV, lines of `name = value`."""
    return table(rng, rng.choice(wording.RECORDS), things, numbers, n_chars, n_questions)


def multivalue(
    rng: Random, n_chars: int, n_questions: int, filler: Filler, least_filler: float = LEAST_FILLER
) -> Sample:
    """Three or four numbers for each thing, in filler; a question asks for all those of one."""
    per_key = rng.choice((3, 4))
    room = facts_in(n_chars, least_filler) // per_key
    keys = things(rng, max(1, min(n_questions, room)))
    values = iter(numbers(rng, per_key * len(keys)))
    owners = keys * per_key
    rng.shuffle(owners)
    values_of: dict[str, list[str]] = {k: [] for k in keys}
    facts = []
    for k in owners:
        v = next(values)
        values_of[k].append(v)
        facts.append(worded(rng, wording.NUMBER_FACTS, k=k, v=v))
    questions = [
        Question(
            worded(rng, wording.SEVERAL_QUESTIONS, k=k),
            f" {listed(values_of[k])}.",
            tuple(values_of[k]),
        )
        for k in rng.sample(keys, min(n_questions, len(keys)))
    ]
    return Sample(scatter(rng, facts, n_chars, filler), tuple(questions))


def multiquery(
    rng: Random, n_chars: int, n_questions: int, filler: Filler, least_filler: float = LEAST_FILLER
) -> Sample:
    """Numbers of things, in filler; a question asks for several at once."""
    n = max(4, min(2 * n_questions, facts_in(n_chars, least_filler)))
    keys, values = things(rng, n), numbers(rng, n)
    facts = number_facts(rng, keys, values)
    questions = []
    for _ in range(n_questions):
        asked = rng.sample(range(n), rng.choice((2, 3, 4)))
        names = listed([f"the {keys[i]}" for i in asked])
        answers = tuple(values[i] for i in asked)
        questions.append(Question(f"The numbers of {names} are", f" {listed(answers)}.", answers))
    return Sample(scatter(rng, facts, n_chars, filler), tuple(questions))


def table(
    rng: Random, form: str, keys: Draw, values: Draw, n_chars: int, n_questions: int
) -> Sample:
    """Facts of one form fill the context, line by line; questions about some of them."""
    n = max(1, n_chars // len(form.format(k="old bed", v="12345")))
    named, given = keys(rng, n), values(rng, n)
    parts: list[Part] = []
    for k, v in zip(named, given, strict=True):
        row = ("\n" if parts else "") + form.format(k=k, v=v)
        n_chars -= len(row)
        if n_chars < 0 and parts:
            break
        parts.append(Part(row, False))
    n = len(parts)
    return Sample(tuple(parts), number_questions(rng, named[:n], given[:n], n_questions))


def facts_in(n_chars: int, least_filler: float) -> int:
    """About how many facts a context has room for, with least_filler times as much filler."""
    return int(n_chars / (FACT_CHARS * (least_filler + 1)))


def number_facts(rng: Random, keys: list[str], values: list[str]) -> list[str]:
    """For each thing, a sentence that tells its number."""
    return [worded(rng, wording.NUMBER_FACTS, k=k, v=v) for k, v in zip(keys, values, strict=True)]


def number_questions(
    rng: Random, keys: list[str], values: list[str], n: int
) -> tuple[Question, ...]:
    """n questions about different things, fewer where there are fewer."""
    asked = rng.sample(range(len(keys)), min(n, len(keys)))
    return tuple(
        Question(worded(rng, wording.NUMBER_QUESTIONS, k=keys[i]), f" {values[i]}.", (values[i],))
        for i in asked
    )


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
