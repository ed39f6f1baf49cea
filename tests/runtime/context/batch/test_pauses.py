"""Contexts that decode while the prompt of another one is paused.

The oracle is each context alone: the same bits of what is read and of what is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import kvarn
from kvarn.jit.launch.launcher import Stopped
from kvarn.models.errors import ModelError
from kvarn.runtime import stats
from kvarn.runtime.context import Context
from kvarn.runtime.context.batch import Batch
from kvarn.runtime.engine import on_engine
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import SparsePrefill

from ....models import tiny_cases, tiny_models
from ....models.adapters import CASES, SEED, projections, random_pairs, write_adapter
from . import together
from .test_same_bits import ATTEND, KEEP, tiny_case


def read_paused(batch: Batch, context: Context, ids: list[int], work: Callable[[], None]) -> None:
    """Prefill, with `work` in each pause."""

    def read() -> None:
        with batch.pausing(work):
            context.prefill(ids)

    on_engine(read)


class Decoding:
    """Contexts that have read a prompt and decode greedily: one alone or all, turn by turn."""

    def __init__(
        self, model: Model, makes: Sequence[together.Make], prompts: Sequence[list[int]]
    ) -> None:
        self.batch, self.contexts = Batch(model), [make() for make in makes]
        for context, ids in zip(self.contexts, prompts, strict=True):
            context.prefill(ids)
        self._makes, self._prompts, self._n_passes = makes, prompts, 0
        self._steps: list[list[together.Step]] = [[] for _ in makes]

    def __call__(self) -> None:
        """Decode a token of one context, of each one after the other, or else of all."""
        n, turn = len(self.contexts), self._n_passes % (len(self.contexts) + 1)
        numbers = range(n) if turn == n else [turn]
        self._n_passes += 1
        tokens = [together.greedy(self.contexts[i]) for i in numbers]
        self.batch.decode_together([self.contexts[i] for i in numbers], tokens)
        for i, token in zip(numbers, tokens):
            self._steps[i].append((token, self.contexts[i].logits.copy()))

    def check(self) -> None:
        """What was decoded has the bits that it has alone; all have decoded."""
        for make, ids, steps in zip(self._makes, self._prompts, self._steps, strict=True):
            assert steps
            expected = together.alone(make, ids, len(steps))
            assert [token for token, _ in steps] == [token for token, _ in expected]
            for (_, logits), (_, known) in zip(steps, expected):
                np.testing.assert_array_equal(logits, known)


def check_read(make: together.Make, ids: list[int], read: Context) -> None:
    """A context that has read `ids` in pauses goes on as one that has read them at once."""
    with make() as context:
        np.testing.assert_array_equal(read.logits, context.prefill(ids))
        for _ in range(3):
            token = together.greedy(context)
            np.testing.assert_array_equal(read.decode(token), context.decode(token))


@pytest.mark.parametrize("name", [case.name for case in tiny_cases.CASES if case.n_layers < 40])
def test_architectures(name: str, tmp_path: Path) -> None:
    """Short prompts, whose passes are filled up with rows, and longer ones. Without models of many
    layers, after each of which passes through all run: there are smaller ones of their kind."""
    model = tiny_case(name, tmp_path)
    make = partial(model.context, 256)
    decoding = Decoding(model, [make] * 2, [together.prompt(model, i, 20 + i) for i in range(2)])
    for n in (3, 70):
        ids = together.prompt(model, n, n)
        with make() as reader:
            read_paused(decoding.batch, reader, ids, decoding)
            check_read(make, ids, reader)
    decoding.check()


@pytest.mark.parametrize("kind", [*ATTEND, *KEEP, "sparse"])
def test_methods(kind: str) -> None:
    """Prompts of more than a chunk, beside answers of the same and of other methods."""
    model = kvarn.load()
    make = partial(model.context, 1500, ATTEND.get(kind), keep=KEEP.get(kind, kvarn.KeepAll()))
    if kind == "sparse":
        make = partial(model.context, 1500, prefill=SparsePrefill(64, from_=128))
    makes = [make, partial(model.context, 1500), partial(model.context, 1500, keep=KEEP["h2o"])]
    prompts = [together.prompt(model, i, 500 + i) for i in range(3)]
    decoding, ids = Decoding(model, makes, prompts), together.prompt(model, 9, 700)
    with make() as reader:
        read_paused(decoding.batch, reader, ids, decoding)
        check_read(make, ids, reader)
    decoding.check()


def test_adapters(tmp_path: Path) -> None:
    tiny_models.write(tmp_path / "m.gguf", CASES["llama-mha"], SEED)
    pairs = random_pairs(projections(CASES["llama-mha"]), 4)
    lora = write_adapter(tmp_path / "a.gguf", "llama", pairs)
    model = kvarn.load(tmp_path / "m.gguf", lora=[lora])
    make = partial(model.context, 256)
    decoding = Decoding(model, [make] * 2, [together.prompt(model, i, 20 + i) for i in range(2)])
    ids = together.prompt(model, 9, 70)
    with make() as reader:
        read_paused(decoding.batch, reader, ids, decoding)
        check_read(make, ids, reader)
    decoding.check()


def test_drafts() -> None:
    """Guesses are verified in the pass of a context that decodes alone."""
    model = kvarn.load()
    make = partial(model.context, 1500)
    ids, prompt = together.prompt(model, 1, 600), together.prompt(model, 2, 90)
    coming = [token for token, _ in together.alone(make, prompt, 40)]
    with make() as reader, make() as answer:
        answer.prefill(prompt)
        batch, n_passes = Batch(model), 0

        def verify() -> None:
            nonlocal n_passes
            n = len(answer.tokens) - len(prompt)
            if n + 5 < len(coming):
                batch.decode_together([answer], [coming[n]], [coming[n + 1 : n + 4]])
                while answer.reads_ahead(coming[n := n + 1]):
                    answer.decode(coming[n])
                n_passes += 1

        read_paused(batch, reader, ids, verify)
        check_read(make, ids, reader)
        assert n_passes > 3 and answer.stats.accepted_tokens == 3 * n_passes
        assert together.greedy(answer) == coming[len(answer.tokens) - len(prompt)]


@pytest.mark.parametrize("evicting", [False, True])
def test_a_stopped_prompt_stops_nothing_else(evicting: bool) -> None:
    """Its flag is set in a pause, in which two contexts decode, each with a flag of its own, which
    is not set. Where tokens are evicted, the pass goes on to its end."""
    model = kvarn.load()
    make = partial(model.context, 1500, keep=KEEP["streaming"] if evicting else kvarn.KeepAll())
    decoding = Decoding(model, [partial(model.context, 1500)] * 2, [[5] * 20, [6] * 30])
    flags, n_pauses, n_decoded = np.zeros(3, np.int64), 0, 0
    for number, context in enumerate(decoding.contexts, 1):
        context.stop_at(flags[number:].ctypes.data)
    ids = together.prompt(model, 1, 400)

    def work() -> None:
        nonlocal n_pauses, n_decoded
        n_pauses += 1
        flags[0] = n_pauses > 2
        decoding()
        n_decoded += 1

    with make() as reader:
        reader.stop_at(flags.ctypes.data)
        if evicting:
            read_paused(decoding.batch, reader, ids, work)
        else:
            with pytest.raises(Stopped):
                read_paused(decoding.batch, reader, ids, work)
            assert n_pauses == n_decoded == 3 and not reader.tokens
            flags[0], n_pauses = 0, -1000
            read_paused(decoding.batch, reader, ids, work)
        reader.stop_at(0)
        check_read(make, ids, reader)
    decoding.check()


def test_nothing_computes_in_the_memory_of_a_paused_prompt() -> None:
    """Another prompt, a token of one context and logits are refused, and the prompt goes on."""
    model = kvarn.load()
    batch, ids = Batch(model), together.prompt(model, 1, 300)
    hidden, n_refused = np.ones((1, model.config.n_embd), np.float32), 0
    with model.context(400) as reader, model.context(400) as other:
        other.prefill([1, 2, 3])
        computing: list[Callable[[], object]] = [
            lambda: other.prefill([4] * 9),
            lambda: other.decode(4),
            lambda: other.reader.project(hidden),
            lambda: other.reader.project(np.repeat(hidden, 2, 0)),
        ]

        def work() -> None:
            nonlocal n_refused
            for compute in computing:
                with pytest.raises(ModelError, match="paused"):
                    compute()
                n_refused += 1

        read_paused(batch, reader, ids, work)
        check_read(partial(model.context, 400), ids, reader)
        assert n_refused == 8 * model.config.n_layers
        assert other.tokens == [1, 2, 3]
        check_read(partial(model.context, 400), [1, 2, 3], other)


def test_an_error_in_a_pause_ends_the_pass_and_the_pauses() -> None:
    model = kvarn.load()
    batch, ids = Batch(model), together.prompt(model, 1, 300)

    def fail() -> None:
        raise KeyError("in a pause")

    with model.context(400) as reader:
        with pytest.raises(KeyError, match="in a pause"):
            read_paused(batch, reader, ids, fail)
        assert not reader.tokens
        reader.prefill(ids)
        check_read(partial(model.context, 400), ids, reader)


def test_clocks_count_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that only pauses advance, reading took no time; what began in a pause did."""
    now = 0.0
    monkeypatch.setattr(stats, "time", SimpleNamespace(perf_counter=lambda: now))
    model, taken = kvarn.load(), set[float]()

    def work() -> None:
        nonlocal now
        clock = stats.Clock()
        now += 5.0
        taken.add(sum(clock.read()))

    with model.context(400) as reader:
        read_paused(Batch(model), reader, together.prompt(model, 1, 300), work)
        assert now == 10.0 * model.config.n_layers and taken == {5.0}
        seconds = reader.stats.prefill_seconds + reader.stats.compile_seconds
        assert seconds == pytest.approx(0.0)


@pytest.mark.parametrize("name", ["llama-mha", "qwen35", "lfm2", "gemma3"])
def test_a_context_is_settled_where_it_need_not_read_again(name: str, tmp_path: Path) -> None:
    """Layers with states have those after a rejected guess, and a cut forgets the hidden state."""
    model = tiny_case(name, tmp_path)
    with model.context(256) as context:
        assert context.reader.is_settled
        context.prefill(together.prompt(model, 1, 40))
        assert context.reader.is_settled
        token = together.greedy(context)
        context.decode(token, [(together.greedy(context) + 1) % 9, 3])
        assert context.reader.is_settled == (not model.config.state_shapes)
        context.decode(together.greedy(context))
        assert context.reader.is_settled
        context.truncate(30)  # with states, the tokens since a checkpoint are read again
        assert context.reader.is_settled == bool(model.config.state_shapes)


def test_contexts_save_and_close_in_a_pause(tmp_path: Path) -> None:
    """Of one pack, which the prompt's context goes on with, and of one that begins with it: they
    hold all that was decoded, and the prompt's pack what it read."""
    model = kvarn.load()
    first, second = together.prompt(model, 1, 1100), together.prompt(model, 2, 900)
    with model.context(2100, store=kvarn.Disk(tmp_path / "a")) as context:
        context.prefill(first)
    child = kvarn.Disk(tmp_path / "b", parent=tmp_path / "a", n_shared=1050)
    reader = model.context(2100, store=kvarn.Disk(tmp_path / "a"))
    answer = model.context(2100, store=child)
    answer.prefill([7] * 40)
    batch, said = Batch(model), list[int]()

    def work() -> None:
        if len(said) == 5:
            return
        said.append(together.greedy(answer))
        batch.decode_together([answer], [said[-1]])
        answer.commit()
        if len(said) == 5:
            answer.close()

    read_paused(batch, reader, second, work)
    check_read(partial(model.context, 2100), [*first, *second], reader)
    reader.close()
    with model.context(2100, store=kvarn.Disk(tmp_path / "b", read_only=True)) as kept:
        assert kept.tokens == [*first[:1050], *[7] * 40, *said]
        with model.context(2100) as context:
            context.prefill([*first[:1050], *[7] * 40])
            for token in said:
                logits = context.decode(token)
            np.testing.assert_array_equal(kept.logits, logits)
    with model.context(2100, store=kvarn.Disk(tmp_path / "a", read_only=True)) as kept:
        assert kept.tokens[:2000] == [*first, *second]
