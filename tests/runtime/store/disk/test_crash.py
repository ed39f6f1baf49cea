"""Whatever stops a writer, the pack opens at a state that was committed, and goes on from there."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvarn.ops.attention.layout import SEGMENT
from kvarn.runtime.store import DiskStore, PackError
from kvarn.runtime.store.disk.checking.verify import verify

from .medium import Medium, PowerCut, broken, disk_full, power_cut
from .packs import MIXED, WINDOWS, check, fill, fill_column, hidden_of, make, opened, save

STEPS = 9
FEW, MANY = 20, 300


class History:
    """A writer at work: appends, cuts and commits at random."""

    def __init__(self, path: Path, seed: int, windows: tuple[int, ...], states: bool) -> None:
        self.path, self.random, self.windows = path, random.Random(seed), windows
        self.states = states
        self.tokens: list[int] = []
        self.committed: list[int] = []
        self.underway: list[int] | None = None
        self.unsynced: list[int] | None = None  # what was before a commit that a kill left unsynced

    def live(self) -> None:
        if not (self.path / "pack.json").exists():
            make(self.path, windows=self.windows, states=self.states)
        store = opened(self.path)
        try:
            for _ in range(STEPS):
                self.step(store)
        finally:
            store.close()

    def step(self, store: DiskStore) -> None:
        start = len(self.tokens)
        if self.random.random() < 0.35:
            start = self.random.choice((start, max(0, start - 9), self.random.randint(0, start)))
        n = self.random.choice((1, 64, 512, 1500, SEGMENT - start % SEGMENT))
        more = [self.random.randint(0, 999) for _ in range(n)]
        self.tokens = self.tokens[:start] + more
        fill(store, self.tokens, start)
        if self.states and self.random.random() < 0.3:
            store.pin(len(self.tokens))
        if self.random.random() < 0.3:
            store.end_text(len(self.tokens))
        if self.random.random() < 0.7:
            fill_column(store, self.tokens)
        self.commit(store)
        store.reserve(len(self.tokens) + 1)
        if self.random.random() < 0.2:
            self.tokens = self.tokens[: self.random.randint(0, len(self.tokens))]
            fill(store, self.tokens, len(self.tokens))
            self.commit(store)

    def commit(self, store: DiskStore) -> None:
        self.underway, self.unsynced = list(self.tokens), None
        save(store, self.tokens)
        self.committed, self.underway = self.underway, None

    def recover(self) -> None:
        """What is found is the last commit, or the one underway; and it can be gone on from."""
        if not (self.path / "pack.json").exists():
            assert not self.committed
            shutil.rmtree(self.path, ignore_errors=True)
            return
        reader = opened(self.path, writable=False)
        found = reader.saved.tokens
        assert found in (self.committed, self.underway, self.unsynced)
        assert (reader.saved.hidden is None) == (not found)
        assert reader.saved.hidden is None or (reader.saved.hidden == hidden_of(found)).all()
        check(reader, found)
        for pin in reader.folder.last_commit().pins:
            rows, _ = reader.folder.read_tail(pin.tail, pin.n_tokens)
            assert len(rows) == pin.n_tokens % SEGMENT
        reader.close()
        if found == self.underway:
            self.unsynced = self.committed
        self.tokens, self.committed, self.underway = list(found), list(found), None


def lives_and_dies(
    folder: Path, seed: int, windows: tuple[int, ...] = (), states: bool = False
) -> None:
    """Lives that end in a kill or a power cut, which also takes what a killed one left unsynced;
    then one that ends well."""
    history = History(folder / f"pack-{seed}", seed, windows, states)
    before = None
    for _ in range(3):
        medium = Medium(history.random.randint(1, 90), power_cut, history.random.random())
        if before is not None:
            medium.inherit(before)
        before = None
        try:
            with medium.mounted():
                history.live()
        except PowerCut:
            if history.random.random() < 0.4:
                before = medium
            else:
                medium.lose_power()
        history.recover()
    history.live()
    history.recover()
    assert verify(history.path) == []


@pytest.mark.parametrize("part", range(4))
def test_power_cuts(tmp_path: Path, part: int) -> None:
    for seed in range(part * FEW // 4, (part + 1) * FEW // 4):
        lives_and_dies(tmp_path, seed)


@pytest.mark.parametrize("windows", [WINDOWS, (1500, 40), (1024, 0), MIXED])
def test_power_cuts_with_windows(tmp_path: Path, windows: tuple[int, ...]) -> None:
    for seed in range(FEW // 3):
        lives_and_dies(tmp_path, seed, windows)


@pytest.mark.parametrize("windows", [(), WINDOWS, MIXED])
def test_power_cuts_with_states(tmp_path: Path, windows: tuple[int, ...]) -> None:
    for seed in range(FEW):
        lives_and_dies(tmp_path, seed, windows, states=True)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [(), WINDOWS, (1500, 40)])
@pytest.mark.parametrize("part", range(10))
def test_many_power_cuts(tmp_path: Path, part: int, windows: tuple[int, ...]) -> None:
    for seed in range(1000 + part * MANY // 10, 1000 + (part + 1) * MANY // 10):
        lives_and_dies(tmp_path, seed, windows)


@pytest.mark.parametrize(
    ("fault", "message"), [(disk_full, "No space left"), (broken, "Input/output error")]
)
def test_a_failed_write_is_one_line_and_loses_no_commit(
    pack: Path, fault: Callable[[], None], message: str
) -> None:
    tokens = list(range(900))
    for stop_at in range(1, 60):
        shutil.rmtree(pack)
        make(pack)
        medium, more = Medium(0, fault, stop_at), [*tokens, *range(700)]
        with medium.mounted():
            store = opened(pack)
            fill(store, tokens, 0)
            save(store, tokens)
            medium.stop_at = medium.calls + stop_at
            fill(store, more, 900)
            try:
                save(store, more)
            except PackError as error:
                assert message in str(error)
                assert "keeps its last commit, of 900 tokens" in str(error)
            else:
                break  # the commit takes fewer calls
            with pytest.raises(PackError, match="has failed before"):
                save(store, more)
            store.reserve(len(more) + 1)
            check(store, more)  # in memory all is there
        store.close()
        assert opened(pack, writable=False).saved.tokens in (tokens, more)
    assert stop_at > 8
