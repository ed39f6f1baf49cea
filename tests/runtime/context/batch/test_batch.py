"""What a pass of several contexts does beside their logits: as `Context.decode` for each."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.jit.launch import graph
from kvarn.jit.launch.launcher import Stopped
from kvarn.models.passes.batch import BatchTransformer
from kvarn.runtime.context import Context
from kvarn.runtime.context.batch import Batch, SaveFailed
from kvarn.runtime.context.reading.prompt import ContextError
from kvarn.runtime.context.saving import TOKENS
from kvarn.runtime.model import Model
from kvarn.runtime.store import StoreError
from kvarn.system.errors import OutOfDeviceMemory

from ....models import tiny_cases, tiny_models
from . import together


@pytest.fixture
def flags() -> np.ndarray:
    return np.zeros(3, np.int64)


@pytest.fixture
def contexts(tiny: Model) -> Iterator[list[Context]]:
    """Three, each after a prompt of its own."""
    made = [tiny.context(256) for _ in range(3)]
    for number, context in enumerate(made):
        context.prefill(together.prompt(tiny, number, 20 + number))
    yield made
    for context in made:
        context.close()


@pytest.fixture
def set_in_layer(monkeypatch: pytest.MonkeyPatch) -> Callable[[np.ndarray], None]:
    """From now on, flags are set while a pass mixes the second layer."""

    def set_in_layer(flags: np.ndarray) -> None:
        read = BatchTransformer.read

        def reading(self: BatchTransformer, tokens: list) -> object:
            layer, mix = self._layers[1], self._layers[1].mix

            def mixing(*args: object) -> None:
                flags[:] = 1
                mix(*args)

            monkeypatch.setattr(layer, "mix", mixing)
            return read(self, tokens)

        monkeypatch.setattr(BatchTransformer, "read", reading)

    return set_in_layer


def states(contexts: list[Context]) -> list[tuple[list[int], np.ndarray]]:
    return [(list(context.tokens), context.logits.copy()) for context in contexts]


def check_unchanged(contexts: list[Context], before: list[tuple[list[int], np.ndarray]]) -> None:
    for context, (tokens, logits) in zip(contexts, before, strict=True):
        assert context.tokens == tokens
        np.testing.assert_array_equal(context.logits, logits)
        assert context.stats.decoded_tokens == 0


def test_what_is_counted(tiny: Model, contexts: list[Context]) -> None:
    batch, lengths = Batch(tiny), [len(context.tokens) for context in contexts]
    for token in (5, 6):
        batch.decode_together(contexts, [token, token + 1, token + 2])
    for number, context in enumerate(contexts):
        assert context.tokens[lengths[number] :] == [5 + number, 6 + number]
        assert context.stats.decoded_tokens == 2 and context.stats.decode_seconds > 0
        assert context.reader.n_prompt == lengths[number]


def test_nothing_to_decode(tiny: Model) -> None:
    Batch(tiny).decode_together([], [])


@pytest.mark.parametrize(
    ("numbers", "tokens", "message"),
    [
        ((0, 1), (5,), "2 contexts, 1 tokens and 1 drafts"),
        ((0, 0), (5, 6), "twice"),
        ((0, 1), (5, 512), "outside the vocabulary"),
        ((0, 1), (5, "6"), "whole numbers"),
    ],
)
def test_what_is_refused_changes_nothing(
    tiny: Model, contexts: list[Context], numbers: tuple, tokens: tuple, message: str
) -> None:
    before = states(contexts)
    with pytest.raises(ContextError, match=message):
        Batch(tiny).decode_together([contexts[i] for i in numbers], tokens)
    check_unchanged(contexts, before)


def test_a_full_context_is_refused(tiny: Model, contexts: list[Context]) -> None:
    with tiny.context(4) as full:
        full.prefill([1, 2, 3, 4])
        before = states(contexts)
        with pytest.raises(ContextError, match="do not fit"):
            Batch(tiny).decode_together([*contexts, full], [1] * 4)
        check_unchanged(contexts, before)


def test_a_context_of_another_model_is_refused(contexts: list[Context]) -> None:
    with pytest.raises(ContextError, match="different models"):
        Batch(kvarn.load()).decode_together(contexts, [1, 2, 3])


def test_drafted_tokens_cost_no_pass(
    tiny: Model, contexts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One context has read its token ahead, another one forgets a draft that was wrong."""
    contexts[0].decode(7, [8])
    contexts[1].decode(7, [8])
    ahead = contexts[0].reader._draft[0][1].copy()
    read, rows = BatchTransformer.read, []
    monkeypatch.setattr(BatchTransformer, "read", lambda s, t: rows.append(len(t)) or read(s, t))
    Batch(tiny).decode_together(contexts, [8, 9, 10])
    assert rows == [2]
    assert contexts[0].stats.accepted_tokens == 1 and contexts[1].stats.accepted_tokens == 0
    np.testing.assert_array_equal(contexts[0].logits, ahead)
    assert [context.tokens[-1] for context in contexts] == [8, 9, 10]


def test_what_drafts_count(tiny: Model, contexts: list[Context]) -> None:
    lengths = [len(context.tokens) for context in contexts]
    Batch(tiny).decode_together(contexts, [7, 8, 9], [[1, 2, 3], [], [4]])
    stats = [context.stats for context in contexts]
    assert [one.draft_passes for one in stats] == [1, 0, 1]
    assert [one.drafted_tokens for one in stats] == [3, 0, 1]
    assert [one.decoded_tokens for one in stats] == [1, 1, 1]
    assert [len(context.tokens) for context in contexts] == [n + 1 for n in lengths]
    assert [context.reads_ahead(token) for context, token in zip(contexts, (1, 1, 4))] == [
        True,
        False,
        True,
    ]


def test_long_drafts_are_refused(tiny: Model, contexts: list[Context]) -> None:
    before = states(contexts)
    with pytest.raises(ContextError, match="too long"):
        Batch(tiny).decode_together(contexts, [1, 2, 3], [[], [4] * 32, []])
    with pytest.raises(ContextError, match="3 tokens and 2 drafts"):
        Batch(tiny).decode_together(contexts, [1, 2, 3], [[], []])
    check_unchanged(contexts, before)


def test_the_same_contexts_again_are_one_graph(
    tiny: Model, contexts: list[Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded when they come a second time; anew for others, and where addresses change."""
    mix, recorded = BatchTransformer._mix, []
    monkeypatch.setattr(
        BatchTransformer, "_mix", lambda *args: recorded.append(graph.recording()) or mix(*args)
    )
    batch, n = Batch(tiny), tiny.config.n_layers

    def decode(of: list[Context], drafts: list[list[int]] | None = None) -> list[bool]:
        recorded.clear()
        batch.decode_together(of, list(range(10, 10 + len(of))), drafts)
        return list(recorded)

    for of in (contexts, contexts[:2], contexts):
        assert [decode(of) for _ in range(3)] == [[False] * n, [True] * n, []]
    contexts[1].decode(3)
    assert decode(contexts) == []
    drafts = [[1, 2], [], [3]]
    assert [decode(contexts, drafts) for _ in range(3)] == [[False] * n, [True] * n, []]
    assert decode(contexts) == [False] * n
    assert decode(contexts) == [True] * n
    contexts[1].reader.cache.graphs.clear()
    assert [decode(contexts) for _ in range(2)] == [[True] * n, []]


def test_contexts_return_to_marks(tiny: Model, contexts: list[Context]) -> None:
    batch, marks = Batch(tiny), [context.mark() for context in contexts]
    results = []
    for _ in range(2):
        for token in range(4):
            batch.decode_together(contexts, [token, token + 1, token + 2])
        results.append(np.stack([context.logits for context in contexts]))
        for context, mark in zip(contexts, marks):
            context.return_to(mark)
    np.testing.assert_array_equal(*results)


def test_a_flag_set_before_a_pass(tiny: Model, contexts: list[Context], flags: np.ndarray) -> None:
    for number, context in enumerate(contexts):
        context.stop_at(flags[number:].ctypes.data)
    before, flags[1] = states(contexts), 1
    with pytest.raises(Stopped):
        Batch(tiny).decode_together(contexts, [1, 2, 3])
    check_unchanged(contexts, before)


def test_a_shared_flag_stops_a_pass(
    tiny: Model,
    contexts: list[Context],
    flags: np.ndarray,
    set_in_layer: Callable[[np.ndarray], None],
) -> None:
    for context in contexts:
        context.stop_at(flags.ctypes.data)
    before = states(contexts)
    set_in_layer(flags)
    with pytest.raises(Stopped):
        Batch(tiny).decode_together(contexts, [1, 2, 3])
    check_unchanged(contexts, before)


@pytest.mark.parametrize("evicting", [False, True])
def test_flags_of_single_contexts_wait_for_the_end_of_a_pass(
    tiny: Model,
    contexts: list[Context],
    flags: np.ndarray,
    evicting: bool,
    set_in_layer: Callable[[np.ndarray], None],
) -> None:
    """As a shared one does where a context evicts."""
    if evicting:
        contexts[0].close()
        contexts[0] = tiny.context(256, keep=kvarn.Streaming(30))
        contexts[0].prefill(together.prompt(tiny, 0, 40))
    for number, context in enumerate(contexts):
        context.stop_at(flags[0 if evicting else number :].ctypes.data)
    set_in_layer(flags)
    Batch(tiny).decode_together(contexts, [1, 2, 3])
    assert [context.tokens[-1] for context in contexts] == [1, 2, 3]


@pytest.mark.parametrize("name", ["llama-mha", "qwen35", "lfm2", "nemotron_h", "falcon-h1"])
def test_a_pass_without_memory_leaves_all_as_they_were(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails in its last layer, where states of layers before have changed."""
    tiny_models.write(tmp_path / "m.gguf", next(c for c in tiny_cases.CASES if c.name == name), 1)
    model = kvarn.load(tmp_path / "m.gguf")
    made = [model.context(256) for _ in range(3)]
    expected = []
    for number, context in enumerate(made):
        context.prefill(together.prompt(model, number, 20 + number))
        with model.context(256) as other:
            other.prefill(context.tokens)
            expected.append(other.decode(7).copy())
    before, batch = states(made), Batch(model)

    def no_memory(*_: object) -> None:
        raise OutOfDeviceMemory("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(BatchTransformer, "logits", no_memory)
        with pytest.raises(OutOfDeviceMemory):
            batch.decode_together(made, [1, 2, 3])
    check_unchanged(made, before)
    batch.decode_together(made, [7, 7, 7])
    for context, logits in zip(made, expected):
        np.testing.assert_array_equal(context.logits, logits)


def test_contexts_save_themselves_when_due(tiny: Model, tmp_path: Path) -> None:
    """After so many tokens as alone; one that cannot be saved does not keep others from it."""
    made = [tiny.context(256, store=kvarn.Disk(tmp_path / str(i))) for i in range(3)]
    saves: list[int] = []
    for number, context in enumerate(made):
        context.prefill(together.prompt(tiny, number, 20))
        context._saving._saved_at += 3600  # by tokens, not by seconds
        commit = context.commit

        def committed(number: int = number, commit: Callable[[], None] = commit) -> None:
            saves.append(number)
            if number == 1:
                raise StoreError("the disk is full")
            commit()

        context.commit = committed  # type: ignore[method-assign]
    batch = Batch(tiny)
    for _ in range(TOKENS - 1):
        batch.decode_together(made, [1, 2, 3])
    assert not saves
    with pytest.raises(SaveFailed, match="the disk is full") as caught:
        batch.decode_together(made, [1, 2, 3])
    assert saves == [0, 1, 2] and set(caught.value.problems) == {1}
    assert [len(context.tokens) for context in made] == [20 + TOKENS] * 3
    for context in made:
        context.close()
