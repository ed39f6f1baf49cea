"""Packs store of layers with a window what can still be read, and can be cut back all the same."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.runtime.store import DiskStore, PackError, windowed
from kvarn.runtime.store.disk.archive import export_pack, import_pack
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.folder import PackFolder
from kvarn.runtime.store.disk.format.checkpoints import newest_end, segments_to_keep

from .packs import MIXED, WINDOWS, check, fill, holds, keys_of, make, opened, random_tokens, save
from .test_contents import ODD, forge, set_
from .test_parents import child_of

SPACING = 4
ALL_WINDOWS = [WINDOWS, (1500, 0), (1024, 1), (40, 100), MIXED]


@pytest.fixture(autouse=True)
def dense_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowed, "SPACING", SPACING)


def build(path: Path, tokens: list[int], start: int = 0, step: int = 512) -> DiskStore:
    """A writer that has read and saved the tokens step by step."""
    store = opened(path)
    for stop in [*range(start + step, len(tokens), step), len(tokens)]:
        fill(store, tokens[:stop], start)
        save(store, tokens[:stop])
        start = stop
    return store


def named(path: Path) -> list[int]:
    return [one.segment for one in PackFolder(path).state().commit.checkpoints]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("n_full", "n_before", "segments"),
    [
        (0, 1, []),
        (1, 1, [0]),
        (10, 1, [3, 7, 8, 9]),
        (8, 1, [3, 6, 7]),
        (20, 2, [6, 7, 14, 15, 17, 18, 19]),
    ],
)
def test_which_checkpoints_a_commit_keeps(n_full: int, n_before: int, segments: list[int]) -> None:
    assert segments_to_keep(n_full, n_before, SPACING * n_before) == segments
    assert newest_end(segments, n_before, n_full) == n_full


def test_what_can_be_read_no_more_is_not_stored(tmp_path: Path) -> None:
    path, tokens = tmp_path / "pack", random_tokens(30 * SEGMENT + 7)
    make(path, windows=WINDOWS)
    build(path, tokens).close()
    assert named(path) == [3, 7, 11, 15, 19, 23, 27, 28, 29]
    slot = PackFolder(path).checkpoint_bytes
    most = (6 + 3 * 3) * slot  # regular ones; the last of two commits, and of one being written
    assert (path / "checkpoints").stat().st_size <= most
    assert not (path / "layer-001.kv").exists()
    assert holds(path, tokens)
    for seed in range(6):  # what is written in place of what is dropped takes no more
        tokens = tokens[: -3 * SEGMENT] + random_tokens(3 * SEGMENT, seed)
        store = opened(path)
        fill(store, tokens, len(tokens) - 3 * SEGMENT)
        save(store, tokens)
        store.close()
    assert (path / "checkpoints").stat().st_size <= most
    assert holds(path, tokens)


@pytest.mark.parametrize("windows", [WINDOWS, MIXED])
def test_verify_names_what_is_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: tuple[int, ...]
) -> None:
    """In a full segment, in a checkpoint, and in the open segment of both kinds of layers."""
    whole, windowed = windows.index(0), 1 - windows.index(0)
    spoiled = [(whole, 1000), (whole, 2 * SEGMENT)]
    spoiled += [(windowed, SEGMENT - 1), (windowed, 2 * SEGMENT + 3)]

    def spoil(layer: int, positions: np.ndarray, *others: Any) -> np.ndarray:
        keys = keys_of(layer, positions, *others)
        keys[np.isin(positions, [at for other, at in spoiled if other == layer]), 0, 5] = np.inf
        return keys

    make(tmp_path / "pack", windows=windows)
    monkeypatch.setitem(fill.__globals__, "keys_of", spoil)
    build(tmp_path / "pack", random_tokens(2 * SEGMENT + 7)).close()
    lines = verify(tmp_path / "pack")
    for layer, token in spoiled:
        for side in "KV":
            assert any(f"{side} of layer {layer}, KV head 0, token {token} " in x for x in lines)
    assert len(lines) == 2 * len(spoiled)


@pytest.mark.parametrize("windows", ALL_WINDOWS)
@pytest.mark.parametrize("again", [False, True])
def test_any_cut_goes_back_to_a_checkpoint_near_it(
    tmp_path: Path, windows: tuple[int, ...], again: bool
) -> None:
    """again: in a process that opens the pack."""
    path, source = tmp_path / "pack", random.Random(0)
    n = 19 * SEGMENT + 300
    tokens = random_tokens(n)
    make(path, windows=windows)
    store = build(path, tokens)
    every = SPACING * -(-max(windows) // SEGMENT) * SEGMENT
    for number in range(8):
        if again:
            store.close()
            store = opened(path)
        held = len(tokens)
        place = source.choice((held, held - 1, held - 900, source.randint(0, held)))
        kept = store.go_back(place)
        assert place - every < kept <= place
        assert kept == place or place < (held // SEGMENT - (not again)) * SEGMENT or again
        assert kept == place or place != held
        check(store, tokens[:kept])
        tokens = tokens[:place] + random_tokens(source.choice((1, 700, 3000)), number)
        fill(store, tokens, kept)
        save(store, tokens)
        check(store, tokens)
    store.close()
    assert holds(path, tokens)


@pytest.mark.parametrize("windows", ALL_WINDOWS)
def test_a_reader_goes_on_and_back_while_the_pack_is_written(
    tmp_path: Path, windows: tuple[int, ...]
) -> None:
    path, tokens = tmp_path / "pack", random_tokens(9 * SEGMENT + 10)
    make(path, windows=windows)
    writer = build(path, tokens)
    reader = opened(path, writable=False)
    other = random_tokens(12 * SEGMENT, 1)
    fill(writer, other, 0)
    for stop in range(SEGMENT, len(other), SEGMENT):  # takes the slots of what the reader names
        fill(writer, other[:stop], stop - SEGMENT)
        save(writer, other[:stop])
    more = tokens + random_tokens(7000, 2)
    for stop in range(len(tokens) + 500, len(more), 500):
        fill(reader, more[:stop], stop - 500)
    check(reader, more[:stop])
    for place in (len(tokens), 9 * SEGMENT, 3000):
        fill(reader, more[:place], reader.go_back(place))
        check(reader, more[:place])


@pytest.mark.parametrize("windows", ALL_WINDOWS)
def test_a_position_that_was_pinned_is_held(tmp_path: Path, windows: tuple[int, ...]) -> None:
    """The one that a store was opened at is: a question after the other goes on from there."""
    path, tokens = tmp_path / "pack", random_tokens(11 * SEGMENT + 700)
    make(path, windows=windows)
    build(path, tokens).close()
    store = opened(path)
    for seed in range(3):
        more, start = tokens + random_tokens(5 * SEGMENT, seed), len(tokens)
        for stop in range(start + 512, len(more) + 1, 512):
            fill(store, more[:stop], start)
            save(store, more[:stop])
            start = stop
        check(store, more[:stop])
        assert store.go_back(len(tokens)) == len(tokens)
        check(store, tokens)
    fill(store, [*tokens, 1], len(tokens))
    save(store, [*tokens, 1])
    store.close()
    assert holds(path, [*tokens, 1])


def test_damaged_checkpoints_are_told_or_passed_over(tmp_path: Path) -> None:
    path, tokens = tmp_path / "pack", random_tokens(10 * SEGMENT + 10)
    make(path, windows=WINDOWS)
    build(path, tokens).close()
    by_segment = {one.segment: one for one in PackFolder(path).state().commit.checkpoints}
    size = PackFolder(path).checkpoint_bytes
    flip(path / "checkpoints", by_segment[7].slot * size + 5)
    assert verify(path) == [f"pack {path}: checkpoints is damaged in slot {by_segment[7].slot}"]
    store = opened(path)
    assert store.go_back(8 * SEGMENT + 10) == 4 * SEGMENT
    fill(store, tokens[: 8 * SEGMENT + 10], 4 * SEGMENT)
    check(store, tokens[: 8 * SEGMENT + 10])
    store.close()
    flip(path / "checkpoints", by_segment[9].slot * size + 5)
    for io in ("mmap", "pread"):
        with pytest.raises(PackError, match="checkpoints is damaged in slot"):
            opened(path, io=io)
    assert len(verify(path)) == 2
    (path / "checkpoints").unlink()
    with pytest.raises(PackError, match="its file checkpoints is missing"):
        opened(path, writable=False)


@pytest.mark.parametrize("windows", ALL_WINDOWS)
def test_a_child_goes_back_to_the_end_of_its_parent(
    tmp_path: Path, windows: tuple[int, ...]
) -> None:
    """A conversation after a text begins anew there."""
    path, tokens = tmp_path / "pack", random_tokens(6 * SEGMENT + 200)
    make(path, windows=windows)
    build(path, tokens).close()
    child_of(path, tmp_path / "child").close()
    build(path, random_tokens(8 * SEGMENT, 1)).close()  # the parent's own checkpoints are gone
    more = tokens + random_tokens(5000, 2)
    store = build(tmp_path / "child", more, len(tokens))
    for _ in range(2):
        kept = store.go_back(len(tokens))
        assert 6 * SEGMENT <= kept <= len(tokens)
        check(store, tokens[:kept])
        store.close()
        store = opened(tmp_path / "child")
    assert holds(tmp_path / "child", more)


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:20])
def test_hostile_windows_are_one_error(tmp_path: Path, value: object) -> None:
    make(tmp_path / "pack", windows=WINDOWS)
    build(tmp_path / "pack", random_tokens(1100)).close()
    for odd in (value, [value, value], [0, value], [0, 100, value]):
        forge(tmp_path / "pack", set_("windows", to=odd))
        with pytest.raises(PackError, match=r"pack\.json is not one that kvarn writes"):
            opened(tmp_path / "pack")


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:20])
def test_hostile_heads_are_one_error(tmp_path: Path, value: object) -> None:
    make(tmp_path / "pack", windows=MIXED)
    build(tmp_path / "pack", random_tokens(1100)).close()
    for odd in (value, [value] * 2, [[3, 40], value], [[3, 40], [value, 16]], [[3, 40], [1, 40]]):
        forge(tmp_path / "pack", set_("model", "heads", to=odd))
        with pytest.raises(PackError, match=r"pack\.json is not one that kvarn writes"):
            opened(tmp_path / "pack")


@pytest.mark.parametrize("windows", ALL_WINDOWS)
@pytest.mark.parametrize("n", [500, SEGMENT, 6 * SEGMENT + 1])
def test_an_export_holds_them(tmp_path: Path, windows: tuple[int, ...], n: int) -> None:
    path, tokens = tmp_path / "pack", random_tokens(n)
    make(path, windows=windows)
    build(path, tokens).close()
    export_pack(path, tmp_path / "archive")
    import_pack(tmp_path / "archive", tmp_path / "copy")
    assert holds(tmp_path / "copy", tokens)
    assert named(tmp_path / "copy") == named(path)
    store = opened(tmp_path / "copy")
    fill(store, tokens[: n // 2], n // 2)
    save(store, tokens[: n // 2])
    store.close()
    assert holds(tmp_path / "copy", tokens[: n // 2])
