"""What an answer read. Oracles: a file of selections of the same generation in this process,
counted by Python, and the definition of passages."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvarn
from kvarn.runtime.attend.selections import Selections
from kvarn.runtime.lens.choices import AROUND, MOST_PASSAGES, ChoiceCounter, most_chosen
from kvarn.runtime.lens.passages import Lens, Passage
from kvarn.runtime.loading.load import load
from kvarn.runtime.model import Model
from kvarn.runtime.serving.protocol import Reading, Text

from .live import GREEDY, Live

TEXT = "".join(
    f"House {n} belongs to the {trade}. "
    for n, trade in enumerate(["miller", "smith", "baker", "weaver", "cooper"] * 25)
)
QUESTION = "Who lives in house 7? It is the"
SINK, WINDOW, BUDGET, N = 4, 16, 48, 12
CHOOSING = Reading({"method": "topk", "budget": str(BUDGET), "sink": SINK, "window": WINDOW})


@pytest.fixture(scope="module")
def model() -> Model:
    return load(threads=1)


def lens_of(engine: Live, prompt: str, reading: Reading, n: int = N) -> Lens:
    fields = {"max_tokens": n, "sampling": GREEDY, "reading": reading, "ignore_eos": True}
    answer = engine.run(engine.answer(Text(prompt), lens=True, **fields))
    assert answer.done is not None and answer.done.lens is not None
    return answer.done.lens


def places_of(choices: list[int]) -> list[tuple[int, int, int]]:
    """By the definition: the most chosen tokens, with `AROUND` others, joined where they touch."""
    n = len(choices)
    order = sorted(range(n), key=lambda position: (-choices[position], position))
    marked = [one for one in order[: min(max(n // 64, 12), 128)] if choices[one]]
    shown = {near for one in marked for near in range(one - AROUND, one + AROUND + 1)}
    shown &= set(range(n))
    starts = sorted(one for one in shown if one - 1 not in shown)
    found = []
    for start in starts:
        stop = start
        while stop in shown:
            stop += 1
        found.append((start, stop, sum(choices[start:stop])))
    return sorted(found, key=lambda place: (-place[2], place[0]))[:12]


@given(st.lists(st.integers(0, 3) | st.integers(0, 90), max_size=400), st.integers(1, 9))
def test_passages_are_those_of_the_definition(choices: list[int], times: int) -> None:
    choices = choices * times
    assert most_chosen(np.array(choices, np.int64)) == places_of(choices)


def test_a_uniform_text_and_one_peak() -> None:
    assert most_chosen(np.zeros(100, np.int64)) == []
    peak = np.zeros(1000, np.int64)
    peak[500] = 7
    assert most_chosen(peak) == [(500 - AROUND, 500 + AROUND + 1, 7)]
    peaks = np.zeros(40_000, np.int64)
    peaks[np.arange(1, 101) * 300] = np.arange(1, 101)
    first = most_chosen(peaks)
    assert [place[2] for place in first] == list(range(100, 100 - MOST_PASSAGES, -1))


def test_sinks_the_window_and_the_answer_do_not_count() -> None:
    counter = ChoiceCounter(2, 3, 10)
    lists = np.array([[0, 1, 2, 6, 7, 8, 9], [1, 2, 9, 0, 0, 0, 0]], np.uint32)
    counter.add(0, 10, lists, np.array([7, 3]))  # positions 2 to 6 are chosen, not read anyway
    counter.add(1, 14, lists + np.uint32(3), np.array([7, 3]))
    assert counter.choices.tolist() == [0, 0, 2, 1, 2, 2, 1, 0, 0, 1]
    assert (counter.n_read, counter.n_stored) == (20, 2 * 10 + 2 * 14)


def expected_of(model: Model, ids: list[int], folder: Path) -> Lens:
    """The lens of a generation in this process, whose selections are read from a file."""
    path, method = folder / "selections", kvarn.TopK(budget=BUDGET, sink=SINK, window=WINDOW)
    with model.context(2048, method) as context:
        context.prefill(ids)
        with context.recording(path):
            for _ in range(N - 1):
                context.decode(int(np.argmax(context.logits)))
    choices, read, stored = Counter[int](), 0, 0
    for layer in Selections.read(path).layers:
        for step in layer:
            for tokens in step.lists:
                read, stored = read + len(tokens), stored + step.stored
                last = min(step.stored - WINDOW, len(ids))
                choices.update(one for one in tokens.tolist() if SINK <= one < last)
    places = places_of([choices[position] for position in range(len(ids))])
    decode, total = model.tokenizer.decode, choices.total()
    passages = [
        Passage(start, stop, n / total, decode(ids[start:stop], special=True))
        for start, stop, n in places
    ]
    return Lens(False, read / stored, passages)


def test_an_answer_tells_what_was_recorded(engine: Live, model: Model, tmp_path: Path) -> None:
    ids = model.tokenizer.encode(TEXT + QUESTION, bos=True)
    lens = lens_of(engine, TEXT + QUESTION, CHOOSING)
    assert lens == expected_of(model, ids, tmp_path)
    assert 1 < len(lens.passages) <= MOST_PASSAGES and 0 < lens.read < 0.3
    assert sum(one.share for one in lens.passages) <= 1 + 1e-9


def test_where_everything_is_read_nothing_is_shown(engine: Live) -> None:
    everything = Lens(True, 1.0)
    assert lens_of(engine, TEXT, Reading({"method": "full"})) == everything
    assert lens_of(engine, TEXT, Reading({"method": "auto"})) == everything  # below 8,192 tokens
    assert lens_of(engine, "Short", CHOOSING) == everything
    assert lens_of(engine, TEXT, CHOOSING, n=1) == everything


def test_watching_changes_no_answer_and_ends_with_it(engine: Live) -> None:
    fields = {
        "max_tokens": N,
        "sampling": GREEDY,
        "reading": CHOOSING,
        "ignore_eos": True,
    }
    plain = engine.run(engine.answer(Text(TEXT), **fields))
    watched = engine.run(engine.answer(Text(TEXT), lens=True, **fields))
    again = engine.run(engine.answer(Text(TEXT), **fields))
    assert plain.tokens == watched.tokens == again.tokens
    assert plain.done is not None and again.done is not None
    assert plain.done.lens is None and again.done.lens is None
