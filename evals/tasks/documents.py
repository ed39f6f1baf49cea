"""Questions over documents: short portraits of people, who know one another."""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from . import wording
from .filler import Filler
from .names import JOBS, PLACES, RELATIONS, people
from .sample import Part, Question, Sample, begun
from .wording import worded

SENTENCES = 2
"""Sentences of filler in a document."""
LEAST_CHARS = 100
"""Least characters of a document."""


@dataclass(frozen=True)
class Person:
    """The facts in a document."""

    name: str
    home: str
    job: str
    relation: str
    whom: str


def qa_single(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Documents about people; one of them tells where a person lives, or what he or she does."""
    persons, parts = _documents(rng, n_chars, filler)
    questions = []
    for person in rng.sample(persons, min(n_questions, len(persons))):
        if rng.random() < 0.5:
            form, answer = rng.choice(wording.HOME_QUESTIONS), person.home
        else:
            form, answer = rng.choice(wording.JOB_QUESTIONS), person.job
        questions.append(Question(form.format(p=person.name), f" {answer}.", (answer,)))
    return Sample(parts, tuple(questions))


def qa_two(rng: Random, n_chars: int, n_questions: int, filler: Filler) -> Sample:
    """Documents about people; one tells whom a person knows, another where that person lives."""
    persons, parts = _documents(rng, n_chars, filler)
    homes = {person.name: person.home for person in persons}
    asked = [person for person in persons if person.whom in homes]
    questions = []
    for person in rng.sample(asked, min(n_questions, len(asked))):
        form, home = rng.choice(wording.TWO_HOP_QUESTIONS), homes[person.whom]
        reply = f" {person.whom}, who lives in {home}."
        questions.append(Question(form.format(r=person.relation, p=person.name), reply, (home,)))
    return Sample(parts, tuple(questions))


def _documents(rng: Random, n_chars: int, filler: Filler) -> tuple[list[Person], tuple[Part, ...]]:
    """People each of whom knows the next, and their documents in another order; at least two."""
    names = people(rng, n_chars // LEAST_CHARS + 3)
    sentences = filler.sentences(rng)
    persons: list[Person] = []
    documents: list[str] = []
    for name, whom in pairwise(names):
        place, job, relation = map(rng.choice, (PLACES, JOBS, RELATIONS))
        person = Person(name, place, job, relation, whom)
        document = _document(rng, person, [next(sentences) for _ in range(SENTENCES)])
        n_chars -= len(document) + len("Document 10000:\n\n\n")
        if n_chars < 0 and len(persons) >= 2:
            break
        persons.append(person)
        documents.append(document)
    rng.shuffle(documents)
    numbered = [f"Document {i}:\n{document}\n\n" for i, document in enumerate(documents, 1)]
    return persons, begun([Part(text, False) for text in numbered])


def _document(rng: Random, person: Person, others: list[str]) -> str:
    """The facts about a person, in any order, between sentences of filler."""
    facts = [
        worded(rng, wording.HOME_FACTS, p=person.name, x=person.home),
        worded(rng, wording.JOB_FACTS, p=person.name, x=person.job),
        worded(rng, wording.RELATION_FACTS, p=person.name, r=person.relation, q=person.whom),
    ]
    told = [*facts, *(" ".join(other.split()) for other in others)]
    rng.shuffle(told)
    return " ".join(told)
