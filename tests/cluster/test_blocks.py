"""Workers that read blocks of one text, in the test's process: the pack of one process."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn.cluster.blocks import AnyNode, BlockReaderConfig, read_blocks
from kvarn.cluster.jobs import JobBusy, JobEnded, NodeUnfit, WorkerDied, WorkerReady, WorkerStarting
from kvarn.cluster.queue import Queue
from kvarn.cluster.reading import NodeFacts, ReaderConfig
from kvarn.runtime.attend import TopK
from kvarn.runtime.model import Model
from kvarn.runtime.packs import blocks
from kvarn.runtime.packs.notes import attempt
from kvarn.runtime.packs.pack import index_pack, pack_info
from kvarn.runtime.prefill import BlocksPrefill
from kvarn.runtime.store import PackError
from kvarn.runtime.store.disk.format.parts_text import parts_folder
from kvarn.system.errors import KvarnError

from .workers import Inline, Scripted

TEXT, SHORT = "The wheel turned. " * 200, "The wheel turned. " * 80
PREFILL, CTX = BlocksPrefill(1024), 4096
NAMES = ["block 2 of 3", "block 3 of 3"]


def silent(done: int, total: int) -> None:
    pass


@pytest.fixture
def reading(tiny_path: Path, tmp_path: Path) -> BlockReaderConfig:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / ".mark").touch()
    how = ReaderConfig(tmp_path / "shared", tiny_path, n_ctx=CTX, attend=TopK(budget=40))
    return BlockReaderConfig(how, "pack", TEXT, PREFILL, ".mark")


def contents(pack: Path) -> dict[str, bytes]:
    others = ("pack.json", "commits", "lock")
    return {file.name: file.read_bytes() for file in pack.iterdir() if file.name not in others}


def one_process(model: Model, folder: Path, text: str) -> dict[str, bytes]:
    """What a pack of the text has."""
    kvarn.build_pack(model, folder / "one", text, CTX, PREFILL)
    index_pack(model, folder / "one", TopK(budget=40), CTX)
    return contents(folder / "one")


@pytest.mark.parametrize("text", [TEXT, SHORT])
def test_workers_read_the_pack_of_one_process(
    reading: BlockReaderConfig, tiny: Model, tmp_path: Path, text: str
) -> None:
    """A short text is read by one."""
    reading = replace(reading, text=text)
    workers = Inline({node: reading(1) for node in "ab"})
    outcomes = list(read_blocks(Queue(workers, AnyNode(), pytest.fail)))
    names = NAMES if text == TEXT else []
    assert [one.key for one in outcomes] == ["the first tokens", *names, "the rest"]
    assert contents(tmp_path / "shared" / "pack") == one_process(tiny, tmp_path, text)
    n_tokens = pack_info(tmp_path / "shared" / "pack").n_tokens
    assert sum(one.result[1] for one in outcomes) == n_tokens
    assert {path.name for path in (tmp_path / "shared").iterdir()} == {"pack", ".mark"}
    again = list(read_blocks(Queue(Inline({"a": reading(1)}), AnyNode(), pytest.fail)))
    assert [one.result[1] for one in again] == [0] * len(again)


def test_blocks_of_a_lost_machine_are_read_by_another(
    reading: BlockReaderConfig, tiny: Model, tmp_path: Path
) -> None:
    told: list[str] = []
    workers = Inline({node: reading(1) for node in "ab"})
    for outcome in read_blocks(Queue(workers, AnyNode(), told.append)):
        if outcome.key == "the first tokens":
            workers.lost = {"a"}
        elif outcome.key in NAMES:
            assert outcome.node == "b"
    assert re.fullmatch(r"a: the worker died; block [23] of 3 is given out again", told[0])
    assert told[1:] == ["a is left out: the machine is gone"]
    assert contents(tmp_path / "shared" / "pack") == one_process(tiny, tmp_path, TEXT)


def test_a_block_that_kills_workers_ends_the_command_by_name() -> None:
    def script(worker: str, work: Any) -> list[Any]:
        if work == "block 2 of 3":
            return [WorkerDied(worker), WorkerReady(worker, NodeFacts("m", {}))]
        return [JobEnded(worker, (NAMES, 0))]

    workers = Scripted([WorkerStarting("a", "a"), WorkerReady("a", NodeFacts("m", {}))], script)
    with pytest.raises(KvarnError, match="a: block 2 of 3: given up: 4 workers died of it"):
        list(read_blocks(Queue(workers, AnyNode(), [].append)))
    assert [work for _, work in workers.started].count("block 2 of 3") == 4


def test_a_block_goes_on_on_each_node() -> None:
    placing, nodes = AnyNode(), frozenset("ab")
    placing.admit("a", NodeFacts("m", {}))
    placing.admit("b", NodeFacts("m", {}))
    placing.record_death("block 2 of 3", "a", 512)
    assert all(placing.may_run("block 2 of 3", node, nodes) for node in nodes)
    with pytest.raises(KvarnError, match="its model is another one than on a"):
        placing.admit("b", NodeFacts("n", {}))


def test_a_machine_that_does_not_share_the_folder_is_refused(
    reading: BlockReaderConfig, tmp_path: Path
) -> None:
    (tmp_path / "shared" / ".mark").unlink()
    message = f"its {tmp_path}/shared is not that of the machine of this command: expected a folder"
    with pytest.raises(KvarnError, match=message):
        reading(1).facts()


def test_a_block_that_another_reads_is_busy(reading: BlockReaderConfig, tmp_path: Path) -> None:
    reader, pack = reading(1), tmp_path / "shared" / "pack"
    assert reader.run("the first tokens", silent)[0] == NAMES
    with (
        attempt(parts_folder(pack) / "00001", "block 2"),
        pytest.raises(JobBusy, match="another process or context is writing to it"),
    ):
        reader.run("block 2 of 3", silent)


def test_what_a_full_disk_and_another_pack_are_told_as(
    reading: BlockReaderConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading(1).run("the first tokens", silent)
    with pytest.raises(PackError, match="it is read from another text"):
        replace(reading, text=TEXT + ".")(1).run("block 2 of 3", silent)

    def full(*arguments: object) -> None:
        raise PackError(tmp_path, "cannot be written") from OSError(28, "No space left on device")

    monkeypatch.setattr(blocks.TextBlocks, "read_part", full)
    with pytest.raises(NodeUnfit, match="cannot be written"):
        reading(1).run("block 2 of 3", silent)
