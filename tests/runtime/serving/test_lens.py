"""What an answer attended to. Oracles: facts in a text; the definition of passages; the same
request without a lens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarn.runtime.lens.passages import MOST_PASSAGES, Lens
from kvarn.runtime.lens.quotes import AROUND, heaviest
from kvarn.runtime.serving.prompt import Chat, Prompt, Reading, Text
from kvarn.runtime.serving.protocol import Pieces

from .live import GREEDY, Live, live, start_of

TRADES = ["miller", "smith", "baker", "weaver", "cooper"] * 12
TEXT = "".join(f"House {n} belongs to the {trade}.\n" for n, trade in enumerate(TRADES))
N = 6


@pytest.fixture(scope="module", params=[0, 1 << 28], ids=["memory", "disk"])
def engine(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Live]:
    """With a library on disk, whose packs are opened beside the answer, and without."""
    with live(start_of(tmp_path_factory.mktemp("cache"), cache_bytes=request.param)) as running:
        yield running


def question(number: int) -> str:
    return f"Who lives in house {number}? House {number} belongs to"


def lens_of(engine: Live, prompt: Prompt, reading: Reading | None = None) -> Lens:
    fields = {"max_tokens": N, "sampling": GREEDY, "reading": reading or Reading()}
    answer = engine.run(engine.answer(prompt, lens=True, ignore_eos=True, **fields))
    assert answer.done is not None and answer.done.lens is not None
    shares = [one.share for one in answer.done.lens.passages]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 1 + 1e-9
    return answer.done.lens


def names(lens: Lens, number: int) -> bool:
    """Whether one of the first passages has the house."""
    return any(f"ouse {number} belongs" in one.text for one in lens.passages[:3])


def places_of(weights: list[float], borders: set[int]) -> list[tuple[int, int, float]]:
    """By the definition: the heaviest tokens, with `AROUND` others up to a border, joined where
    they touch and no border stands."""
    n = len(weights)
    order = sorted(range(n), key=lambda position: (-weights[position], position))
    marked = [one for one in order[: min(max(n // 64, 12), 128)] if weights[one]]
    shown = {
        near
        for one in marked
        for near in range(max(one - AROUND, 0), min(one + AROUND + 1, n))
        if not any(min(one, near) < border <= max(one, near) for border in borders)
    }
    starts = sorted(one for one in shown if one - 1 not in shown or one in borders)
    places = []
    for start in starts:
        stop = start
        while stop in shown and (stop == start or stop not in borders):
            stop += 1
        places.append((start, stop, sum(weights[start:stop])))
    return sorted(places, key=lambda place: (-place[2], place[0]))[:12]


@given(
    st.lists(st.integers(0, 3) | st.integers(0, 90), max_size=400),
    st.integers(1, 9),
    st.sets(st.integers(0, 400), max_size=40),
)
def test_passages_are_those_of_the_definition(
    weights: list[int], times: int, borders: set[int]
) -> None:
    """Of whole numbers, whose sums are exact."""
    weights = weights * times
    borders = {border for border in borders if border <= len(weights)}
    told = heaviest(np.array(weights, np.float64), sorted(borders))
    assert told == places_of([float(one) for one in weights], borders)


def test_a_uniform_text_and_one_peak() -> None:
    assert heaviest(np.zeros(100)) == []
    peak = np.zeros(1000)
    peak[500] = 7
    assert heaviest(peak) == [(500 - AROUND, 500 + AROUND + 1, 7)]
    peaks = np.zeros(40_000)
    peaks[np.arange(1, 101) * 300] = np.arange(1, 101)
    first = heaviest(peaks)
    assert [place[2] for place in first] == list(range(100, 100 - MOST_PASSAGES, -1))


@pytest.mark.parametrize("method", ["full", "topk"])
def test_the_passage_is_the_one_that_is_asked_for(engine: Live, method: str) -> None:
    """Of a text alone, whatever the method; its place is its line."""
    reading, n_named = Reading({"method": method}), 0
    for number in (7, 23, 31, 48):
        lens = lens_of(engine, Text(f"{TEXT}{question(number)}"), reading)
        n_named += names(lens, number)
        best = lens.passages[0]
        assert best.place.startswith("line ") and best.text in TEXT
        line = int(best.place.removeprefix("line "))
        assert any(f"House {near}" in best.text for near in (line - 2, line - 1))
    assert n_named >= 3


def test_of_a_pack_and_its_chat_the_pack_alone_is_quoted(engine: Live) -> None:
    async def read() -> None:
        async for _ in engine.client.read_pack("houses", TEXT):
            pass

    engine.run(read())
    n_named, reading = 0, Reading(pack="houses")
    for number in (7, 23, 31, 48):
        asked = {"role": "user", "content": question(number)}
        lens = lens_of(engine, Chat([asked]), reading)
        assert lens.passages[0].place.startswith("line ")
        n_named += names(lens, number)
    assert n_named >= 3
    turns = zip(("user", "assistant"), ("Hello. " * 40, "Yes. " * 40))
    before = [{"role": role, "content": text} for role, text in turns]
    messages = [*before, {"role": "user", "content": "And now?"}]
    of_pack = lens_of(engine, Chat(messages), reading)
    assert of_pack.passages and all(one.text in TEXT for one in of_pack.passages)
    assert all(one.place.startswith("line ") for one in of_pack.passages)
    alone = lens_of(engine, Chat(messages))
    contents = [message["content"].strip() for message in messages]
    for one in alone.passages:  # what the template writes around them is no passage
        number = int(one.place.removeprefix("message ").partition(",")[0])
        assert one.text.strip() in contents[number - 1]
    assert alone.passages


def test_a_message_has_its_question_in_its_last_line(engine: Live) -> None:
    messages = [{"role": "user", "content": f"{TEXT}\n{question(31)}\n"}]
    assert names(lens_of(engine, Chat(messages)), 31)


def test_where_nothing_can_be_weighed_the_reason_is_told(engine: Live) -> None:
    assert lens_of(engine, Text("Short")) == Lens(note="nothing stands before the question")
    told = lens_of(engine, Text(TEXT), Reading({"keep": "streaming", "keep_budget": "64"}))
    assert told == Lens(note="tokens were evicted, so that nothing can be weighed")


def test_a_lens_changes_no_answer_and_nothing_that_is_kept(engine: Live) -> None:
    fields = {"max_tokens": N, "sampling": GREEDY, "ignore_eos": True}
    text = f"{TEXT}{question(5)}"
    watched = engine.run(engine.answer(text, lens=True, **fields))
    after = engine.run(engine.answer(f"{text}{watched.text} and", **fields))
    plain = engine.run(engine.answer(text, **fields))
    assert plain.tokens == watched.tokens and plain.text == watched.text
    assert plain.done is not None and plain.done.lens is None
    assert after.done is not None and after.done.n_cached >= plain.done.n_prompt


def test_an_answer_is_cancelled_while_it_is_weighed(engine: Live) -> None:
    """The engine then does what comes next."""

    async def leave() -> None:
        fields = {"max_tokens": 1, "sampling": GREEDY, "ignore_eos": True}
        async for message in engine.client.generate(Text(TEXT * 2), lens=True, **fields):
            if isinstance(message, Pieces):
                return

    engine.run(leave())
    assert names(lens_of(engine, Text(f"{TEXT}{question(23)}")), 23)
