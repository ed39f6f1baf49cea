"""Reading ahead asks for what is chosen, while the disk is read, and changes no bit."""

import sys
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.ops.attention.decode import read_ahead
from kvarn.runtime.attend.sparse import read_ahead as ahead
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import build_pack
from kvarn.runtime.store.disk import files

HASH = kvarn.Hash(budget=32, sink=4, window=16)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(segments that are mapped, tokens of the first head) of each request."""
    requests: list[tuple[int, int]] = []

    def ask(index, counts, segments, n_mapped, layout, pages) -> int:
        requests.append((n_mapped, int(counts[0])))
        return ahead.FEW

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
    layers = sum(layer.window is None for layer in tiny.config.kv_layers)
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


def test_rows_of_a_prompt_ask_for_what_they_chose(
    tiny: Model, tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each row: 130 of the first layer, and those of the last that are computed."""
    ids = np.random.default_rng(0).integers(0, tiny.config.n_vocab, 3000).tolist()
    sparse, logits = kvarn.SparsePrefill(k=16, from_=0), []
    build_pack(tiny, tmp_path / "pack", ids, 4000)
    for each in (0, ahead.ENOUGH):
        read = count(0, each)
        monkeypatch.setattr(ahead, "bytes_from_disk", lambda read=read: next(read))
        store = kvarn.Disk(tmp_path / "pack", read_only=True)
        with tiny.context(4000, store=store, prefill=sparse) as context:
            logits.append(context.prefill(ids[:130]).copy())
            steps = [layer.steps for layer in context.stats.prompt_layers]
        assert len(asked) == (sum(steps) if each else 0) and steps[0] == 130
    np.testing.assert_array_equal(*logits)
    assert {mapped for mapped, _ in asked} == {2}


def test_layers_that_lack_little_are_left_alone_until_much_comes(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(read_ahead, "CAN_READ_AHEAD", True)
    monkeypatch.setattr(read_ahead, "read_ahead", lambda *args: steps.append(1) or 0)
    layers, n = sum(layer.window is None for layer in tiny.config.kv_layers), 2 * ahead.REST + 2
    # Each layer is asked for once, and then once more after the rest; a flood ends it.
    for each, asked in ((ahead.ENOUGH, 2 * 2 * layers), (ahead.FLOOD, 2 * n * layers)):
        read = count(0, each)
        monkeypatch.setattr(ahead, "bytes_from_disk", lambda read=read: next(read))
        _decoded(tiny, kvarn.Disk(tmp_path / f"{each}"), n)
        assert asked - layers - 1 <= len(steps) <= asked
        steps.clear()


@pytest.mark.skipif(not read_ahead.CAN_READ_AHEAD, reason="Linux alone tells what is in memory")
def test_it_looks_before_it_asks_for_much(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has just been written is in memory: nothing is left to ask for, unless no page is known,
    as of a file of somebody else."""
    requests: list[int] = []
    real = read_ahead.read_ahead

    def ask(*args: object) -> int:
        requests.append(real(*args))
        return requests[-1]

    monkeypatch.setattr(read_ahead, "read_ahead", ask)
    for few, theirs in ((False, False), (True, False), (False, True)):
        read = count(0, ahead.ENOUGH)
        monkeypatch.setattr(ahead, "bytes_from_disk", lambda read=read: next(read))
        monkeypatch.setattr(ahead, "PAGES_PER_TOKEN", 0 if few else 32)
        monkeypatch.setattr(files, "tells_pages", lambda path, theirs=theirs: not theirs)
        _decoded(tiny, kvarn.Disk(tmp_path / f"{few}-{theirs}"))
        assert requests
        assert (max(requests) > 0) == (few or theirs)
        requests.clear()


@pytest.mark.skipif(sys.platform != "linux", reason="the rules are Linux's")
def test_pages_are_told_of_files_that_are_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch(0o444)
    assert files.tells_pages(path)
    monkeypatch.setattr(files.os, "geteuid", lambda: path.stat().st_uid + 1)
    monkeypatch.setattr(files.os, "access", lambda path, mode: False)
    assert not files.tells_pages(path)
