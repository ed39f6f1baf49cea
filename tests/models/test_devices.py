"""A model on a device whose arrays only its operations can read, with K and V on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import kvarn
from kvarn.jit.arena import Arena
from kvarn.models.passes.transformer import Transformer
from kvarn.models.weights import Weights
from kvarn.ops import pointwise
from kvarn.ops.cpu import Cpu
from kvarn.runtime.context.reading import hosted
from kvarn.runtime.engine import on_engine

NAMES = ("llama-odd", "gemma2", "cohere2", "mistral3")


class Sealed:
    """An array of another machine: it can be cut, reshaped and measured, and nothing else."""

    __array_ufunc__ = None

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Sealed:
        return Sealed(self._array[index])

    def __array__(self, *_: Any) -> np.ndarray:
        raise AssertionError("the engine reads an array of another device")

    def reshape(self, *shape: int) -> Sealed:
        view = self._array.reshape(*shape)
        assert np.shares_memory(view, self._array) or not view.size
        return Sealed(view)


def opened(x: Any) -> Any:
    return x._array if isinstance(x, Sealed) else x


def unsealing(function: Callable[..., None]) -> Callable[..., None]:
    return lambda *args: function(*map(opened, args))


class Inputs:
    """Activations of sealed vectors."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.x = inner, None

    def set(self, x: Sealed) -> Inputs:
        self.x = x
        self.inner.set(opened(x))
        return self


class Elsewhere(Cpu):
    """Computes as the CPU does; its arrays are closed to all others, and copied in and out."""

    chunk: ClassVar[int] = 512
    pointwise = SimpleNamespace(
        **{name: unsealing(f) for name, f in vars(pointwise).items() if isfunction(f)}
    )

    def __init__(self) -> None:
        self.copies = 0

    def memory(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return Sealed(super().memory(shape, dtype))

    def put(self, x: np.ndarray, out: Any = None) -> Any:
        if out is None:
            return Sealed(x.copy())
        opened(out)[:] = x
        return out

    def get(self, x: Any, out: np.ndarray | None = None) -> np.ndarray:
        copy: np.ndarray = opened(x).copy()
        if out is None:
            return copy
        out[:] = copy
        return out

    def on_host(self, function: Callable[..., None], inputs: Sequence[Any], out: Any) -> None:
        self.copies += 1
        result = np.empty_like(opened(out))
        function(*map(self.get, inputs), result)
        opened(out)[:] = result

    def activations(self, max_rows: int, n_cols: int, *, alone: bool = False) -> Any:
        return Inputs(super().activations(max_rows, n_cols))

    def linear(self, act: Any, weight: Any, out: Any) -> None:
        super().linear(act.inner, weight, opened(out))

    def get_rows(self, weight: Any, ids: Any, out: Any) -> None:
        super().get_rows(weight, opened(ids), opened(out))


def moved(path: Path, device: Elsewhere) -> kvarn.Model:
    """The model of a file, its weights on `device`."""
    model = kvarn.load(path)
    weights = Weights.load(model.file.tensors, model.config, Arena(), device)
    model.transformer = Transformer(model.config, weights, device.chunk)
    return model


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attend", [kvarn.Full(), kvarn.Hash(budget=16, sink=4, window=16)])
def test_logits_are_the_cpus_bit_by_bit(
    name: str, attend: Any, golden_models: Callable[[str], Any]
) -> None:
    golden, device = golden_models(name), Elsewhere()
    here, elsewhere = kvarn.load(golden.path()), moved(golden.path(), device)
    ids = (golden.prompt * 10)[:60]
    contexts = [model.context(128, attend=attend) for model in (here, elsewhere)]
    rows = [[c.prefill(ids), *(c.decode(i).copy() for i in golden.ids[:4])] for c in contexts]
    np.testing.assert_array_equal(*rows)
    assert device.copies == 5 * here.config.n_layers


def test_one_device_needs_no_copies() -> None:
    attention, device = object(), Elsewhere()
    assert hosted.attention_for(device, attention, device) is attention  # type: ignore[arg-type]
    assert hosted.attention_for(device, attention, Cpu()) is not attention  # type: ignore[arg-type]


class WithoutLeastRows(Elsewhere):
    """As a GPU, which reads a draft as it reads a prompt."""

    least_rows: ClassVar[int] = 1


def test_generated_tokens_that_are_read_again_attend_each_where_it_stands(
    golden_models: Callable[[str], Any],
) -> None:
    """Although K and V are the host's, where generated tokens attend one by one."""
    golden = golden_models("gemma2")
    ids, again = (golden.prompt * 10)[:60], [3, 5, 7, 9]
    with moved(golden.path(), WithoutLeastRows()).context(128) as context:
        context.prefill(ids)
        expected = [context.decode(token).copy() for token in again][-1]
        context.truncate(len(ids))
        on_engine(context.reader.step, again, True, prompt=False)
        np.testing.assert_allclose(context.logits, expected, atol=1e-3)
