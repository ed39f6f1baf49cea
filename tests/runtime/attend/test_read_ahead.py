"""Reading ahead asks for what is chosen, while the disk is read, and changes no bit."""

from itertools import count
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.ops.attention.decode import read_ahead
from kvarn.runtime.attend.sparse import read_ahead as ahead
from kvarn.runtime.model import Model

HASH = kvarn.Hash(budget=32, sink=4, window=16)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(segments that are mapped, tokens of the first head) of each request."""
    requests: list[tuple[int, int]] = []

    def ask(index, counts, segments, n_mapped, layout) -> int:
        requests.append((n_mapped, int(counts[0])))
        return 0

    monkeypatch.setattr(read_ahead, "CAN_READ_AHEAD", True)
    monkeypatch.setattr(read_ahead, "read_ahead", ask)
    return requests


def _decoded(model: Model, store: kvarn.Ram | kvarn.Disk, n: int = 3) -> list[np.ndarray]:
    ids = np.random.default_rng(0).integers(0, model.config.n_vocab, 1200).tolist()
    with model.context(2048, HASH, store=store) as context:
        if not context.tokens:
            context.prefill(ids)
        return [context.decode(token).copy() for token in ids[:n]]


def test_while_much_comes_from_disk_it_is_asked(
    tiny: Model, tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = count(0, ahead.ENOUGH)
    monkeypatch.setattr(ahead, "bytes_from_disk", lambda: next(read))
    layers = sum(layer.window is None for layer in tiny.config.layers)
    expected = _decoded(tiny, kvarn.Ram())
    assert asked == []
    found = _decoded(tiny, kvarn.Disk(tmp_path / "pack"))
    np.testing.assert_array_equal(found, expected)
    assert {mapped for mapped, _ in asked} == {1}
    # Each layer's own choice, and from the second step on the next one's last choice before it.
    assert len(asked) == layers + 2 * (2 * layers) + (layers > 1)
    assert all(4 + 16 < n <= 4 + 16 + 32 for _, n in asked)


def test_it_ends_when_nothing_comes_from_disk(
    tiny: Model, tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "bytes_from_disk", lambda: 7)
    _decoded(tiny, kvarn.Disk(tmp_path / "pack"))
    assert asked == []
    read = iter([0, ahead.ENOUGH])
    monkeypatch.setattr(ahead, "bytes_from_disk", lambda: next(read, ahead.ENOUGH))
    monkeypatch.setattr(ahead, "PATIENCE", 1)
    _decoded(tiny, kvarn.Disk(tmp_path / "pack"))
    assert len(asked) == 1
