"""A flag that stops what is being read, between two phases of kernels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kvarn
from kvarn.jit.launch.launcher import Stopped
from kvarn.models.layer import Layer
from kvarn.runtime.attend import Attend
from kvarn.runtime.context import Context
from kvarn.runtime.context.reading.prompt import CHUNK
from kvarn.runtime.model import Model

from .test_context import ids_of

Flag = NDArray[np.int64]


def stoppable(model: Model, flag: Flag, **axes: Any) -> Context:
    context = model.context(2 * CHUNK, **axes)
    context.stop_at(flag.ctypes.data)
    return context


@pytest.fixture
def flag() -> Flag:
    return np.zeros(1, np.int64)


@pytest.fixture
def set_in_layer(monkeypatch: pytest.MonkeyPatch, flag: Flag) -> Callable[[int], None]:
    """From now on, the flag is set while a pass computes this layer."""
    known = Layer.finish

    def set_in_layer(layer: int) -> None:
        def finish(self: Layer, b: Any) -> None:
            if self.index == layer:
                flag[0] = 1
            known(self, b)

        monkeypatch.setattr(Layer, "finish", finish)

    return set_in_layer


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("attend", [
    kvarn.Full(),
    kvarn.TopK(budget="40", sink=4, window=16),
    kvarn.Hash(budget="40", sink=4, window=16, encoders="simhash"),
], ids=lambda method: method.name)  # fmt: skip
def test_a_stopped_chunk_leaves_no_trace(
    layer: int,
    attend: Attend,
    tiny: Model,
    flag: Flag,
    set_in_layer: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = ids_of(tiny, CHUNK + 200)
    whole = tiny.context(2 * CHUNK, attend)
    whole.prefill(ids)
    expected = whole.decode(7).copy()
    context = stoppable(tiny, flag, attend=attend)
    before = context.prefill(ids[: CHUNK + 30]).copy()
    set_in_layer(layer)
    for _ in range(2):  # the second time the flag is set before the pass
        with pytest.raises(Stopped):
            context.prefill(ids[CHUNK + 30 :])
        assert context.tokens == ids[: CHUNK + 30]
        np.testing.assert_array_equal(context.logits, before)
    flag[0] = 0
    monkeypatch.undo()
    context.prefill(ids[CHUNK + 30 :])
    np.testing.assert_array_equal(context.decode(7), expected)


def test_a_context_that_evicts_ends_its_chunk_first(
    tiny: Model, flag: Flag, set_in_layer: Callable[[int], None]
) -> None:
    ids = ids_of(tiny, 2 * CHUNK)
    whole = tiny.context(2 * CHUNK, keep=kvarn.Streaming(budget=100))
    expected = whole.prefill(ids[:CHUNK])
    context = stoppable(tiny, flag, keep=kvarn.Streaming(budget=100))
    set_in_layer(0)
    with pytest.raises(Stopped):
        context.prefill(ids)
    assert context.tokens == ids[:CHUNK]
    flag[0] = 0
    np.testing.assert_array_equal(context.logits, expected)


def test_a_stopped_token_is_not_read(tiny: Model, flag: Flag) -> None:
    ids = ids_of(tiny, 40)
    context = stoppable(tiny, flag)
    expected = context.prefill(ids).copy()
    flag[0] = 1
    with pytest.raises(Stopped):
        context.decode(3)
    assert context.tokens == ids
    np.testing.assert_array_equal(context.logits, expected)


def test_the_last_token_stays_where_reading_it_again_is_stopped(tiny: Model, flag: Flag) -> None:
    ids = ids_of(tiny, 40)
    whole = tiny.context(64)
    whole.prefill(ids)
    whole.truncate(30)
    context = stoppable(tiny, flag)
    context.prefill(ids)
    context.truncate(30)
    flag[0] = 1
    with pytest.raises(Stopped):
        context.logits  # noqa: B018
    assert context.tokens == ids[:30]
    flag[0] = 0
    np.testing.assert_array_equal(context.logits, whole.logits)
