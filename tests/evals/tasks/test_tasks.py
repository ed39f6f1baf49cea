"""Every task: seeded, as long as asked for, and with the answers that the text itself gives."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest

from kvarn.evals import tasks
from kvarn.evals.tasks import ALL_TASKS, RULER, Plain, Prose, Sample, wording

from .truth import asked, chains_of, numbers_of, said

SIZES = (4_000, 30_000)
SEEDS = range(3)
PROSE = Prose(
    [
        "".join(
            f"In the year {year} they built a house of stone by the sea. It was late; nobody came."
            f"\n\nThe old man of {year} said nothing and looked at all the boats for an hour. "
            for year in range(1000, 1900, 3)
        )
    ]
)


def made(task: str, n_chars: int, seed: int, n_questions: int = 12) -> Sample:
    filler = Plain() if seed % 2 else PROSE
    return ALL_TASKS[task](random.Random(seed), n_chars, n_questions, filler)


def cases(*tasks: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("task", tasks)


@cases(*ALL_TASKS)
def test_a_seed_makes_a_sample_and_another_seed_another(task: str) -> None:
    assert made(task, 4_000, 1) == made(task, 4_000, 1)
    assert made(task, 4_000, 1).context != made(task, 4_000, 3).context


@cases(*ALL_TASKS)
@pytest.mark.parametrize("n_chars", SIZES)
def test_contexts_are_as_long_as_asked_for_and_no_longer(task: str, n_chars: int) -> None:
    for seed in SEEDS:
        length = len(made(task, n_chars, seed).context)
        assert 0.85 * n_chars < length <= n_chars, (seed, length)


@cases(*ALL_TASKS)
def test_questions_end_where_answers_begin(task: str) -> None:
    for seed in SEEDS:
        sample = made(task, 8_000, seed)
        assert 1 <= len(sample.questions) <= 12
        assert len({question.text for question in sample.questions}) == len(sample.questions)
        for question in sample.questions:
            assert question.text == question.text.strip() and question.reply[0] == " "
            assert question.answers and len(set(question.answers)) == len(question.answers)
            for answer in question.answers:
                assert answer in question.reply and answer in sample.context
                assert answer not in question.text


@cases("needle", "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1",
       "niah_multikey_2", "niah_multikey_3", "kv", "records")  # fmt: skip
@pytest.mark.parametrize("seed", SEEDS)
def test_the_thing_asked_for_has_one_number(task: str, seed: int) -> None:
    sample = made(task, 8_000, seed)
    forms = wording.RECORDS if task == "records" else wording.NUMBER_FACTS + wording.TABLE_FACTS
    numbers = numbers_of(sample.context, forms)
    for question in sample.questions:
        thing = asked(wording.NUMBER_QUESTIONS, question.text)["k"]
        assert [*question.answers] == numbers[thing]


@cases("multivalue", "niah_multivalue")
def test_all_numbers_of_the_thing_are_asked_for(task: str) -> None:
    sample = made(task, 8_000, 1)
    numbers = numbers_of(sample.context)
    for question in sample.questions:
        thing = asked(wording.SEVERAL_QUESTIONS, question.text)["k"]
        assert sorted(question.answers) == sorted(numbers[thing])
        assert len(question.answers) in ((4,) if task in RULER else (3, 4))


@cases("multiquery", "niah_multiquery")
def test_things_asked_for_at_once_have_their_numbers_in_order(task: str) -> None:
    sample = made(task, 8_000, 1)
    numbers = numbers_of(sample.context)
    for question in sample.questions:
        words = question.text.removeprefix("The numbers of the ").removesuffix(" are")
        things = words.replace(" and the ", ", the ").split(", the ")
        assert [*question.answers] == [value for thing in things for value in numbers[thing]]


@pytest.mark.parametrize("seed", SEEDS)
def test_chains_lead_to_all_things_with_the_number(seed: int) -> None:
    sample = made("chains", 8_000, seed)
    chains = {chain[0]: chain[1:] for chain in chains_of(sample.context).values()}
    for question in sample.questions:
        first = asked(wording.CHAIN_QUESTIONS, question.text)["k"]
        assert [*question.answers] == chains[first]
    (question,) = made("vt", 8_000, seed).questions
    value = asked(wording.HOLDER_QUESTIONS, question.text)["v"]
    assert [*question.answers] == chains_of(made("vt", 8_000, seed).context)[value]
    assert len(question.answers) == 5


@cases("homes", "qa_1")
@pytest.mark.parametrize("seed", SEEDS)
def test_people_live_and_work_where_it_was_said(task: str, seed: int) -> None:
    sample = made(task, 8_000, seed)
    homes = {fact["p"]: fact["x"] for fact in said(wording.HOME_FACTS, sample.context)}
    jobs = {fact["p"]: fact["x"] for fact in said(wording.JOB_FACTS, sample.context)}
    for question in sample.questions:
        person = asked(wording.HOME_QUESTIONS + wording.JOB_QUESTIONS, question.text)["p"]
        is_home = asked_home(question.text)
        assert [*question.answers] == [(homes if is_home else jobs)[person]]


def asked_home(question: str) -> bool:
    return "live" in question or "home" in question


@cases("two-hop", "qa_2")
@pytest.mark.parametrize("seed", SEEDS)
def test_two_facts_give_the_answer(task: str, seed: int) -> None:
    sample = made(task, 8_000, seed)
    homes = {fact["p"]: fact["x"] for fact in said(wording.HOME_FACTS, sample.context)}
    known = {
        (fact["p"], fact["r"]): fact["q"] for fact in said(wording.RELATION_FACTS, sample.context)
    }
    for question in sample.questions:
        places = asked(wording.TWO_HOP_QUESTIONS, question.text)
        assert [*question.answers] == [homes[known[places["p"], places["r"]]]]


@cases("frequent", "fwe", "cwe")
@pytest.mark.parametrize("n_chars", SIZES)
def test_frequent_words_come_more_often_than_all_others(task: str, n_chars: int) -> None:
    for seed in SEEDS:
        sample = made(task, n_chars, seed)
        words = (word for word in sample.context.removeprefix("Words:").split())
        counts = Counter(word for word in words if word[-1] != ".")
        assert len(sample.questions[0].answers) == (10 if task == "cwe" else 3)
        ranked = counts.most_common()
        for question in sample.questions:
            n = len(question.answers)
            assert {word for word, _ in ranked[:n]} == set(question.answers)
            assert ranked[n - 1][1] > ranked[n][1], (seed, ranked[: n + 1])


def test_words_of_cwe_come_ten_times_as_often_as_in_ruler() -> None:
    counts = Counter(word for word in made("cwe", 200_000, 0).context.split() if word[-1] != ".")
    assert set(Counter(counts.values())) == {3, 30}
    assert sorted(counts.values())[-10:] == [30] * 10


def test_words_of_fwe_follow_the_zeta_distribution() -> None:
    counts = Counter(made("fwe", 300_000, 0).context.split())
    (dots, first), *rest = counts.most_common(6)
    assert dots == "......"
    for k, (_, count) in enumerate(rest, 2):
        assert count == pytest.approx(first / k**2, rel=0.01, abs=1)


def test_passages_go_on_as_the_context_does() -> None:
    sample = made("copy", 8_000, 0)
    context = " ".join(sample.context.split())
    forms = [re.escape(form).replace(r"\{x\}", "(.*)") for form in wording.COPY_QUESTIONS]
    for question in sample.questions:
        (start,) = (m[1] for form in forms if (m := re.fullmatch(form, question.text)))
        assert context.count(start) == 1
        assert f"{start} {question.answers[0]}" in context


@cases("niah_single_1", "niah_single_2", "needle")
def test_needles_stand_anywhere(task: str) -> None:
    places = []
    for seed in range(40):
        sample = made(task, 8_000, seed, n_questions=1)
        (answer,) = sample.questions[0].answers
        places.append(sample.context.index(answer) / len(sample.context))
    assert min(places) < 0.2 and max(places) > 0.8


@cases(*RULER)
def test_the_thirteen_kinds_of_ruler(task: str) -> None:
    assert len(RULER) == 13
    kinds = {"niah_single_3": "-", "niah_multikey_3": "-"}
    answers = made(task, 8_000, 1).questions[0].answers
    assert ("-" in answers[0]) == (task in kinds or task == "cwe")


def test_the_readme_names_every_task() -> None:
    readme = Path(tasks.__file__).with_name("README.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \|", readme, re.MULTILINE)) == set(ALL_TASKS)
