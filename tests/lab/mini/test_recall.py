"""The model that comes with the package finds again what stood thousands of tokens before."""

import random

import pytest

import kvarn
from kvarn.evals.tasks import TASKS, Plain, Sample
from kvarn.runtime.attend import Attend
from kvarn.runtime.model import Model

N_CHARS = 12_000  # some 3,000 tokens; windows are 128
N_QUESTIONS = 20


@pytest.fixture(scope="module")
def mini() -> Model:
    return kvarn.load()


def right(model: Model, sample: Sample, attend: Attend) -> int:
    """How many questions are answered, each behind the context alone."""
    context = model.context(8192, attend=attend)
    context.prefill(sample.context)
    n_tokens, found = len(context.tokens), 0
    for question in sample.questions:
        context.prefill("\n" + question.text)
        reply = "".join(context.generate(max_tokens=12, sampler=kvarn.Sampler(temp=0)))
        found += question.answers[0] in reply
        context.truncate(n_tokens)
    return found


def sample_of(task: str) -> Sample:
    sample = TASKS[task](random.Random(11), N_CHARS, N_QUESTIONS, Plain())
    assert len(sample.questions) == N_QUESTIONS
    return sample


@pytest.mark.parametrize(("task", "least"), [("needle", 18), ("kv", 18), ("homes", 16)])
def test_facts_among_sentences_are_found_again(mini: Model, task: str, least: int) -> None:
    assert right(mini, sample_of(task), kvarn.Full()) >= least


def test_a_few_tokens_do_for_a_needle_when_they_are_chosen_well(mini: Model) -> None:
    sample = sample_of("needle")
    few = {"budget": 2, "sink": 1, "window": 1}
    assert right(mini, sample, kvarn.TopK(index="flat", **few)) >= 15
    assert right(mini, sample, kvarn.Hash(encoders="simhash", **few)) <= 10
