"""Prompts that are read in slices, beside contexts that do other things."""

from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.jit.launch.launcher import Stopped
from kvarn.runtime.context import Context, saving
from kvarn.runtime.context.reading.prompt import CHUNK, ContextError
from kvarn.runtime.model import Model

from .test_context import ids_of
from .test_same_bits import CASES, Case, Reader, models  # noqa: F401 - a fixture

N = 2 * CHUNK + 130


def read(context: Context, ids: list[int], slice: int | None, other: Context | None = None) -> int:
    """Read to the end; `other` decodes between steps. Returns the number of steps."""
    reading, steps = context.reading(ids, slice), 1
    while not reading.step():
        steps += 1
        assert context.tokens[-reading.done :] == ids[: reading.done]
        if other is not None:
            other.decode(5)
    return steps


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_slices_give_the_bits_of_the_whole(case: Case, models: dict[str, Model]) -> None:  # noqa: F811
    """While another context decodes; also of what is generated then."""
    reader = Reader(case, models[case.model])
    for n, slices in ((N, {64: 19, 200: 7}), (40, {1: 40})):
        ids = reader.ids(n)
        with reader.context() as whole:
            expected = whole.prefill(ids).copy(), reader.answer(whole, 10)
        for slice, n_steps in slices.items():
            with reader.context() as context, reader.context() as other:
                other.prefill(ids[:20])
                steps = read(context, ids, slice, other)
                assert steps == (n_steps if case.keep is None else -(-n // CHUNK))
                np.testing.assert_array_equal(context.logits, expected[0])
                assert reader.answer(context, 10) == expected[1]


def test_a_reading_that_nobody_finishes(tiny: Model) -> None:
    """The context holds what was read; the rest can be read otherwise."""
    ids = ids_of(tiny, 300)
    context, whole = tiny.context(CHUNK), tiny.context(CHUNK)
    reading = context.reading(ids, 64)
    assert not reading.step() and not reading.step()
    assert (reading.done, reading.n_tokens) == (128, 300)
    np.testing.assert_array_equal(context.logits, whole.prefill(ids[:128]))
    np.testing.assert_array_equal(context.prefill(ids[128:]), whole.prefill(ids[128:]))
    assert context.stats.prefilled_tokens == 300 and context.stats.prefill_seconds > 0
    with pytest.raises(ContextError, match="cannot go on reading"):
        reading.step()


def test_a_stopped_step_can_be_tried_again(tiny: Model) -> None:
    flag, ids = np.zeros(1, np.int64), ids_of(tiny, 200)
    context = tiny.context(CHUNK)
    context.stop_at(flag.ctypes.data)
    reading = context.reading(ids, 64)
    reading.step()
    flag[0] = 1
    with pytest.raises(Stopped):
        reading.step()
    assert len(context.tokens) == reading.done == 64
    flag[0] = 0
    while not reading.step():
        pass
    np.testing.assert_array_equal(context.logits, tiny.context(CHUNK).prefill(ids))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(20.0, [10, 2 * CHUNK, 1110]), (0.0, [10, 310, CHUNK, 812, 1024, 1110])],
)
def test_a_store_is_saved_at_the_ends_of_segments_or_after_a_while(
    seconds: float,
    expected: list[int],
    tiny: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saving, "READING_SECONDS", seconds)
    with tiny.context(1200, store=kvarn.Disk(tmp_path / "pack")) as context:
        saves, commit = [], context.commit
        monkeypatch.setattr(
            context, "commit", lambda: saves.append(len(context.tokens)) or commit()
        )
        context.prefill(ids_of(tiny, 10))
        read(context, ids_of(tiny, 1100), 300)
        assert saves == expected
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("ids", "slice", "message"),
    [([], 64, "empty"), ([1, 2], 0, "at least one token"), ([1 << 20], 64, "vocabulary")],
)
def test_what_is_refused(tiny: Model, ids: list[int], slice: int, message: str) -> None:
    with pytest.raises(ContextError, match=message):
        tiny.context(64).reading(ids, slice)


def test_a_pack_without_an_index_is_indexed_in_slices(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other contexts compute between them; the answer is that of an index made at once."""
    ids, method = ids_of(model, 2 * CHUNK + 9), kvarn.Hash(budget="64", encoders="simhash")
    kvarn.build_pack(model, tmp_path / "pack", ids[:-9])
    disk = kvarn.Disk(tmp_path / "pack", read_only=True)
    told, n_layers = [], model.config.n_layers
    with model.context(3 * CHUNK, method, store=disk) as at_once:
        at_once.index()
        at_once.prefill(ids[-9:])
        expected = [at_once.decode(id).copy() for id in (7, 8)]
    with (
        model.context(3 * CHUNK, method, store=disk) as context,
        model.context(64) as other,
    ):
        other.prefill(ids[:20])
        reading = context.reading(ids[-9:])
        monkeypatch.setattr(f"{type(reading).__module__}.INDEX_SECONDS", 0.0)
        while not reading.step():
            told.append(reading.done)
            other.decode(5)
        assert told == [0] * (n_layers - 1)
        for id, logits in zip((7, 8), expected, strict=True):
            np.testing.assert_array_equal(context.decode(id), logits)
