"""A question to packs of several machines: gains and answers are those of one machine with all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import kvarn
from kvarn.cluster.asking import ClusterAsker, Shelves
from kvarn.cluster.queue import Queue
from kvarn.cluster.shelf import Shelf, ShelfConfig
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.model import Model
from kvarn.runtime.packs import ranking
from kvarn.runtime.packs.ranking import rank_packs
from kvarn.runtime.store import Disk
from kvarn.system.errors import KvarnError
from lab.peers.model import write_model

from ..runtime.reading import SHAPE
from .workers import Inline

QUESTION = "Who turned the wheel?"
TEXTS = {
    "a": "The miller turned the wheel all day. " * 9,
    "b": "Nobody was at the river. " * 12,
    "c": "The wheel of the mill was old. " * 10,
    "d": "Who knows the owner of the bed? " * 8,
    "e": "An apple is red. " * 14,
}


@pytest.fixture(scope="module")
def library(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    for name, text in TEXTS.items():
        kvarn.build_pack(tiny, folder / name, text, 2048)
    return folder


class Machines:
    """Nodes with workers; shelves: the folders of packs that each node has."""

    def __init__(self, model: Path, shelves: dict[str, Path], question: str = QUESTION) -> None:
        self.lines: list[str] = []
        tasks = {}
        for node, folder in shelves.items():
            store = Disk(folder / "PACK", read_only=True)
            request = ContextRequest(store=store)
            how = {"sampling": {"temp": 0}, "max_tokens": 6, "passages": 2}
            asking = ShelfConfig((folder,), request, question, model, **how)
            tasks[node] = Shelf(asking, 1)
        self.workers = Inline(tasks)
        self.shelves = Shelves(self.lines.append)
        self.asked = ClusterAsker(
            Queue(self.workers, self.shelves, self.lines.append), self.shelves, self.lines.append
        )

    def gains(self) -> dict[str, float]:
        return {self.shelves.packs[id].path.name: x for id, x in self.asked.gains().items()}


def expected(model: Model, library: Path, names: str = "abcde") -> dict[str, float]:
    packs = [ContextRequest(store=Disk(library / name, read_only=True)) for name in names]
    return {Path(fit.pack).name: fit.gain for fit in rank_packs(model, packs, QUESTION)}


@pytest.fixture
def apart(library: Path, tmp_path: Path) -> dict[str, Path]:
    """The packs on three machines, one of which has copies of others."""
    for name, node in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "y"), ("e", "z"), ("a", "z")):
        shutil.copytree(library / name, tmp_path / node / name)
    return {node: tmp_path / node for node in "xyz"}


def test_gains_and_answers_are_those_of_one_machine(
    tiny: Model, tiny_path: Path, library: Path, apart: dict[str, Path]
) -> None:
    wanted = expected(tiny, library)
    machines = Machines(tiny_path, apart)
    assert list(machines.gains().items()) == list(wanted.items())
    machines = Machines(tiny_path, {"one": library, "two": library})  # a shared folder
    gains = machines.asked.gains()
    assert [gains[id] for id in gains] == list(wanted.values())
    assert len(machines.workers.done) == len(TEXTS)  # each pack once
    assert {node for node, _ in machines.workers.done} == {"one", "two"}
    answers = machines.asked.answers(gains, 2)
    for one, (name, gain) in zip(answers, wanted.items()):
        assert (one.pack.path.name, one.gain) == (name, gain)
        asker = kvarn.ask(tiny, library / name, QUESTION, 6)
        assert one.answer.text == asker.text and one.answer.passages == asker.passages[:2]


def test_words_choose_the_same_candidates_as_on_one_machine(
    tiny: Model, tiny_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "CANDIDATES", 2)
    machines = Machines(tiny_path, {"one": library, "two": library})
    gains = machines.gains()
    assert len(gains) == 2 and gains == expected(tiny, library)


def test_packs_of_a_lost_machine_are_read_by_another_or_named(
    tiny_path: Path, library: Path
) -> None:
    shared = Machines(tiny_path, {"one": library, "two": library})
    shared.workers.lost.add("one")
    assert shared.gains().keys() == TEXTS.keys()
    assert "one is left out: the machine is gone" in shared.lines


def test_packs_that_only_a_lost_machine_had_are_named(
    tiny: Model, tiny_path: Path, library: Path, tmp_path: Path
) -> None:
    (tmp_path / "x").mkdir()
    for name in "ab":
        shutil.move(
            shutil.copytree(library / name, tmp_path / "copy" / name), tmp_path / "x" / name
        )
    shutil.copytree(library / "c", tmp_path / "y" / "c")
    machines = Machines(tiny_path, {"one": tmp_path / "x", "two": tmp_path / "y"})
    machines.workers.lost.add("one")
    assert machines.gains() == expected(tiny, library, "c")
    named = [line for line in machines.lines if "is not asked" in line]
    assert named == [
        f"{tmp_path / 'x' / name} on one is not asked: no machine that has it is left"
        for name in "ab"
    ]


def test_what_cannot_be_compared_is_refused(tiny_path: Path, library: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "other.gguf", "f16", SHAPE)
    kvarn.build_pack(kvarn.load(tmp_path / "other.gguf"), tmp_path / "other" / "z", "Nobody.", 64)
    machines = Machines(tiny_path, {"one": library, "two": tmp_path / "other"})
    with pytest.raises(KvarnError, match="z on two by random f16, or with other adapters"):
        machines.gains()
    nowhere = Machines(tiny_path, {"one": tmp_path / "none"})
    with pytest.raises(KvarnError, match=r"no machine has finished packs there: one: .*no folder"):
        nowhere.gains()
    assert nowhere.lines == []


def test_a_machine_without_the_model_is_left_out(tiny_path: Path, library: Path) -> None:
    machines = Machines(tiny_path.parent / "gone.gguf", {"one": library})
    with pytest.raises(KvarnError, match=r"one is left out: the model of its packs, .*gone\.gguf"):
        machines.gains()
