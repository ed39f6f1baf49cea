"""Facts that lead to one another: chains of things, and people who know people."""

from random import Random

from . import wording
from .facts import LEAST_FILLER, facts_in
from .filler import Filler
from .names import JOBS, PLACES, RELATIONS, numbers, people, things
from .sample import Question, Sample, scatter
from .wording import worded

CHAIN = (3, 4, 5)
"""Things in a chain."""


def chains(
    rng: Random, n_chars: int, n_questions: int, filler: Filler, least_filler: float = LEAST_FILLER
) -> Sample:
    """Numbers are passed on from thing to thing; a question asks for all things that have one.

    Similar to RULER's variable tracking. The links of a chain stand in order, mixed with those of
    other chains. A question names the first thing; RULER's name the number instead. Finding a thing
    by its number is a task of its own: models answered with whole chains that began at another.
    """
    room = max(1, facts_in(n_chars, least_filler) // CHAIN[-1])
    values = numbers(rng, min(n_questions, room))
    lengths = [rng.choice(CHAIN) for _ in values]
    names = iter(things(rng, sum(lengths)))
    members = [[next(names) for _ in range(length)] for length in lengths]
    waiting = [i for i, length in enumerate(lengths) for _ in range(length)]
    rng.shuffle(waiting)
    told = [0] * len(values)
    facts = []
    for i in waiting:
        at = told[i]
        told[i] += 1
        if at == 0:
            facts.append(worded(rng, wording.NUMBER_FACTS, k=members[i][0], v=values[i]))
        else:
            a, b = members[i][at - 1 : at + 1]
            facts.append(worded(rng, wording.LINK_FACTS, a=a, b=b))
    questions = tuple(
        Question(
            worded(rng, wording.CHAIN_QUESTIONS, k=members[i][0]),
            " " + ", the ".join(members[i][1:]) + ".",
            tuple(members[i][1:]),
        )
        for i in rng.sample(range(len(values)), len(values))
    )
    return Sample(scatter(rng, facts, n_chars, filler), questions)


def homes(
    rng: Random, n_chars: int, n_questions: int, filler: Filler, least_filler: float = LEAST_FILLER
) -> Sample:
    """Where people live or what they do, in filler; a question asks about one of them."""
    n = max(2, min(n_questions, facts_in(n_chars, least_filler)))
    facts, questions = [], []
    for person in people(rng, n):
        if rng.random() < 0.5:
            place = rng.choice(PLACES)
            facts.append(worded(rng, wording.HOME_FACTS, p=person, x=place))
            question = worded(rng, wording.HOME_QUESTIONS, p=person)
            questions.append(Question(question, f" {place}.", (place,)))
        else:
            job = rng.choice(JOBS)
            facts.append(worded(rng, wording.JOB_FACTS, p=person, x=job))
            question = worded(rng, wording.JOB_QUESTIONS, p=person)
            questions.append(Question(question, f" {job}.", (job,)))
    rng.shuffle(questions)
    return Sample(scatter(rng, facts, n_chars, filler), tuple(questions[:n_questions]))


def two_hop(
    rng: Random, n_chars: int, n_questions: int, filler: Filler, least_filler: float = LEAST_FILLER
) -> Sample:
    """Who is whose brother, and where that one lives: the answer takes both facts."""
    n = max(2, min(n_questions, facts_in(n_chars, least_filler) // 2))
    names = people(rng, 2 * n)
    facts, questions = [], []
    for p, q in zip(names[:n], names[n:], strict=True):
        relation, place = rng.choice(RELATIONS), rng.choice(PLACES)
        facts.append(worded(rng, wording.RELATION_FACTS, p=p, r=relation, q=q))
        facts.append(worded(rng, wording.HOME_FACTS, p=q, x=place))
        question = worded(rng, wording.TWO_HOP_QUESTIONS, r=relation, p=p)
        questions.append(Question(question, f" {q}, who lives in {place}.", (place,)))
    rng.shuffle(facts)
    rng.shuffle(questions)
    return Sample(scatter(rng, facts, n_chars, filler), tuple(questions[:n_questions]))
