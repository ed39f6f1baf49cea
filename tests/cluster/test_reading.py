"""A worker that reads texts, in the test's process: packs are those that one process makes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import kvarn
from kvarn.cluster.jobs import JobBusy, NodeUnfit
from kvarn.cluster.reading import HomeNodes, NodeFacts, Reader, ReaderConfig, TextBytes
from kvarn.cluster.worker import Report, Task, Worker
from kvarn.runtime.model import Model
from kvarn.runtime.packs import texts
from kvarn.runtime.packs.notes import packs_in
from kvarn.runtime.store import PackError
from kvarn.system.errors import KvarnError

TEXT = "The wheel turned. " * 80


@pytest.fixture
def reader(tiny_path: Path, tmp_path: Path, tiny: Model) -> Reader:
    return Reader(ReaderConfig(tmp_path / "library", tiny_path, n_ctx=4096), 1)


def text(name: str, data: str | bytes = TEXT) -> TextBytes:
    return TextBytes(
        name, Path(f"texts/{name}.txt"), data.encode() if isinstance(data, str) else data
    )


def test_the_pack_is_that_of_one_process(reader: Reader, tiny: Model, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    read = reader.run(text("a"), lambda done, total: told.append((done, total)))
    kvarn.build_pack(tiny, tmp_path / "a", TEXT, 4096)
    packs = [tmp_path / "a", tmp_path / "library" / "a"]
    layers = [[file.read_bytes() for file in sorted(pack.glob("layer-*"))] for pack in packs]
    assert layers[0] == layers[1] and len(layers[0]) > 0
    n = read.outcome.n_read
    assert told[0] == (0, 0) and told[-1] == (n, n)
    assert reader.facts().pack_tokens == {"a": n}
    note = (tmp_path / "library" / ".kvarn" / "a").read_text()
    assert '"texts/a.txt"' in note
    assert reader.run(text("a"), lambda done, total: None).outcome.n_read == 0


def test_a_text_that_was_renamed_is_not_read_again(reader: Reader, tmp_path: Path) -> None:
    first = reader.run(text("a"), lambda done, total: None).outcome
    moved = reader.run(text("moved"), lambda done, total: None).outcome
    assert (moved.pack, moved.n_read) == (first.pack, 0)
    assert [pack.name for pack in packs_in(tmp_path / "library")] == ["a"]


def test_errors_of_a_text_are_its_outcome(reader: Reader) -> None:
    for data, told in ((b"\x8d\x80", "is not UTF-8"), (b"", "nothing to read")):
        outcome = reader.run(text("a", data), lambda done, total: None).outcome
        assert isinstance(outcome.pack, KvarnError) and told in str(outcome.pack)


def test_a_pack_that_another_is_at_is_busy(reader: Reader, tiny: Model, tmp_path: Path) -> None:
    with (
        tiny.context(4096, store=kvarn.Disk(tmp_path / "library" / "a", goal=9)),
        pytest.raises(JobBusy),
    ):
        reader.run(text("a"), lambda done, total: None)


def test_a_full_disk_is_the_machines_fault(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise PackError(Path("a"), "cannot be written: No space left on device") from error

    monkeypatch.setattr(texts, "build_pack", full)
    with pytest.raises(NodeUnfit, match="No space left on device"):
        reader.run(text("a"), lambda done, total: None)


def test_a_model_that_cannot_be_loaded_is_the_machines_fault(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise KvarnError("memory does not suffice")

    monkeypatch.setattr("kvarn.runtime.loading.load.load", refuse)
    with pytest.raises(NodeUnfit, match="memory does not suffice"):
        reader.run(text("a"), lambda done, total: None)


def test_a_text_goes_where_most_of_its_pack_is() -> None:
    homes, nodes = HomeNodes(), frozenset("abc")
    homes.admit("a", NodeFacts("m", {"x": 5, "y": 7}))
    homes.admit("b", NodeFacts("m", {"x": 5, "y": 9}))
    homes.admit("c", NodeFacts("m", {}))

    def at(key: str, among: frozenset[str] = nodes) -> str:
        return "".join(node for node in sorted(among) if homes.may_run(key, node, among))

    assert (at("x"), at("y"), at("z")) == ("ab", "b", "abc")
    assert at("y", nodes - {"b"}) == "a"  # b is gone
    homes.record_death("z", "c", 3)
    assert at("z") == "c"
    homes.record_death("y", "b", 0)  # before it could tell what its pack has
    assert at("y") == "b"
    homes.admit("c", NodeFacts("m", {}))  # it had not been saved
    assert at("z") == "abc"
    with pytest.raises(KvarnError, match="its model is another one than on a: fingerprint n, ex"):
        homes.admit("b", NodeFacts("n", {}))


class Counting(Task):
    def __init__(self, threads: int) -> None:
        self.threads = threads

    def facts(self) -> int:
        return self.threads

    def run(self, work: Exception | int, progress: Callable[[int, int], None]) -> int:
        if isinstance(work, Exception):
            raise work
        progress(work, work + 1)
        time.sleep(0.01)
        return work


def ended(worker: Worker, report: Report) -> Report:
    while not report.ended:
        report = worker.poll()
    return report


def test_a_worker_tells_its_results_and_errors() -> None:
    worker = Worker(Counting, 3, 1)
    assert not worker.begin(7).knows  # of a process that was started anew, and not greeted yet
    assert not worker.poll().knows
    assert worker.hello(kvarn.__version__) == 3
    assert ended(worker, worker.begin(7)).result == 7
    refused = ended(worker, worker.begin(KvarnError("no such text"))).result
    assert isinstance(refused, KvarnError) and str(refused) == "no such text"
    failed = ended(worker, worker.begin(ZeroDivisionError("division"))).result
    assert isinstance(failed, KvarnError) and "unexpected ZeroDivisionError" in str(failed)
    assert Worker(Counting, None, 1).hello(kvarn.__version__) == 1


def test_a_worker_that_cannot_work_says_why(tmp_path: Path) -> None:
    worker = Worker(ReaderConfig(tmp_path, tmp_path / "gone.gguf"), 1, 1)
    answer = worker.hello(kvarn.__version__)
    assert isinstance(answer, KvarnError) and "gone.gguf" in str(answer)
    other = worker.hello("0.1")
    assert isinstance(other, KvarnError) and "it has kvarn" in str(other)
