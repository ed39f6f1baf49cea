"""What encoders learn from that the evaluation does not use: questions about what was noted."""

import re
from itertools import islice

from kvarn.evals.tasks import Plain, wording
from lab.mini.texts.notes import LINKS, VALUES, pieces


def _text(seed: int, n: int = 4000) -> str:
    return "".join(islice(pieces(Plain(), seed), n))


def test_the_same_seed_gives_the_same_text() -> None:
    assert _text(1, 300) == _text(1, 300) != _text(2, 300)


def test_questions_repeat_what_was_noted_before() -> None:
    text, found, distances = _text(7), 0, []
    for asked in re.finditer(r"Look up the entry: (.+?), (\d+)\.", text):
        thing, value = asked.groups()
        told = text.find(f"Entry: {thing}, {value}.")
        assert 0 <= told < asked.start()
        distances.append(asked.start() - told)
        found += 1
    assert found > 20
    assert min(distances) < 3_000 and max(distances) > 50_000


def test_links_lead_to_values() -> None:
    """A question about a thing goes on to those that follow it, and ends with a value."""
    found = 0
    for asked in re.finditer(r"What comes after (.+?)\? (.+?)\. (.*)", _text(3)):
        _, after, rest = asked.groups()
        assert after in rest and re.search(r"\d", rest)
        found += 1
    assert found > 20


def test_nothing_is_worded_as_the_evaluation_words_it() -> None:
    """Each run of three words between the names of a form, against all forms of the tasks."""

    def runs(form: str) -> set[tuple[str, ...]]:
        parts = [re.findall(r"[a-z]+", part.lower()) for part in re.split(r"\{\w\}", form)]
        return {tuple(part[i : i + 3]) for part in parts for i in range(len(part) - 2)}

    forms = [form for value in vars(wording).values() if isinstance(value, tuple) for form in value]
    used = set().union(*map(runs, forms))
    assert len(used) > 50
    for form in (form for pair in (*VALUES, *LINKS) for form in pair):
        assert not runs(form) & used, form
