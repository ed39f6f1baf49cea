"""Recorded selections: files give back which tokens were read, and damaged ones are refused."""

import struct
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.runtime.attend import AttendError, selections
from kvarn.runtime.attend.selections import Selections, Source, selection_file
from kvarn.runtime.model import Model

METHOD = kvarn.Hash(budget=40, sink=4, window=16)
READ, STEPS = 300, 3


def decoded(model: Model, attend, record: Path | None = None, n: int = READ) -> np.ndarray:
    ids = np.random.default_rng(0).integers(0, model.config.n_vocab, READ + STEPS).tolist()
    context = model.context(READ + STEPS, attend)
    context.prefill(ids[:n])
    if record is None:
        return np.stack([context.decode(token).copy() for token in ids[READ:]])
    with context.recording(record):
        logits = np.stack([context.decode(token).copy() for token in ids[READ:]])
    context.truncate(n)
    context.decode(1)  # not recorded any more
    return logits


def test_a_record_holds_what_each_step_read(tiny: Model, tmp_path: Path) -> None:
    path = tmp_path / "selections"
    decoded(tiny, METHOD, path)
    found = Selections.read(path)
    assert [len(layer) for layer in found.layers] == [STEPS] * tiny.config.n_layers
    for step, selection in enumerate(found.layers[0]):
        assert selection.stored == READ + 1 + step
        for positions in selection.lists:
            assert set(range(4)) | set(range(READ + 1 + step - 16, READ + 1 + step)) <= set(
                positions.tolist()
            )


@pytest.mark.parametrize("counts", [[1, 5], [0, 3], [7, 7]])
def test_files_give_back_what_was_written(tmp_path: Path, counts: list[int]) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "s"
    lists = np.zeros((2, 9), np.uint32)
    for one, n in zip(lists, counts):
        one[:n] = np.sort(rng.choice(1 << 20, n, replace=False))
    source, tokens = Source(3, 2, "name \x1b", "f00d", "hash budget=2%"), [5, 0, 4_000_000_000]
    with selection_file(path, source, tokens) as writer:
        writer.add(1, 1 << 20, lists, np.array(counts))
        tokens.append(7)
    found = Selections.read(path)
    assert found.source == source
    assert found.tokens.tolist() == [5, 0, 4_000_000_000, 7]
    assert [len(layer) for layer in found.layers] == [0, 1, 0]
    assert found.most == max(counts)
    for one, n, positions in zip(lists, counts, found.layers[1][0].lists):
        np.testing.assert_array_equal(positions, one[:n])


def test_tokens_are_those_at_the_end(tiny: Model, tmp_path: Path) -> None:
    """After wrong guesses and cuts; and where the block ends with an error."""
    path = tmp_path / "selections"
    context = tiny.context(400, METHOD)
    context.prefill(list(range(300)))
    with pytest.raises(KeyboardInterrupt), context.recording(path):
        context.decode(1, [2, 3])
        context.decode(2)
        context.truncate(301)
        context.decode(9)
        raise KeyboardInterrupt
    found = Selections.read(path)
    assert found.tokens.tolist() == [*range(300), 1, 9]
    assert [step.stored for step in found.layers[0]] == [301, 302, 303, 302]
    info = tiny.info
    assert found.source == Source(
        2, 2, info.name, info.fingerprint, "hash budget=40 sink=4 window=16"
    )


def test_bad_files_are_refused_in_words(tiny: Model, tmp_path: Path) -> None:
    path = tmp_path / "selections"
    with pytest.raises(AttendError, match="No such file"):
        Selections.read(path)
    decoded(tiny, METHOD, path)
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    beyond = whole[: start + 4] + struct.pack("<I", 1) + whole[start + 8 :]
    end = whole.rindex(b"\xff" * 4)
    changed = [
        whole.replace(*pair, 1)
        for pair in (
            (b'selections": 2', b'selections": 3'), (b'"n_layers": 2', b'"n_layers": "2"'),
            (b'"model": "', b'"modal": "'), (b'"method": "', b'"method": 1, "_": "'),
        )
    ]  # fmt: skip
    short = whole[: end + 4] + struct.pack("<I", 5) + whole[end + 8 :]
    for damaged in (
        b"", b"{}\n", b"text\n", whole[:-1], whole[:-40], whole + b"\1", beyond, whole[:end],
        whole + whole[end:], short, *changed,
    ):  # fmt: skip
        path.write_bytes(damaged)
        with pytest.raises(AttendError, match="holds no selections, or is damaged"):
            Selections.read(path)


def test_what_cannot_be_recorded_says_so(tiny: Model, tmp_path: Path) -> None:
    path = tmp_path / "selections"
    with pytest.raises(AttendError, match="reads all tokens"):
        decoded(tiny, kvarn.Full(), path)
    assert not path.exists()


def test_what_a_file_names_is_bounded_before_it_takes_memory(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lists = tmp_path / "selections", np.arange(600, dtype=np.uint32).reshape(2, 300)
    with selection_file(path, Source(2, 2, "", "", ""), []) as writer:
        writer.add(0, 700, lists, np.array([300, 300]))
    whole = path.read_bytes()
    many = whole.replace(struct.pack("<II", 300, 300), struct.pack("<II", 300, 701))
    path.write_bytes(many)
    with pytest.raises(AttendError, match="names 701 of 700 tokens"):
        Selections.read(path)
    path.write_bytes(whole)
    monkeypatch.setattr(selections, "available_bytes", lambda: 599 * 32)
    with pytest.raises(AttendError, match="more tokens than memory has room for"):
        Selections.read(path)
