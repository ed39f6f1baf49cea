"""With a Ray of three nodes on loopback: processes and nodes that die change no byte of a pack."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn.cluster import queue
from kvarn.cluster.asking import ClusterAsker, Shelves
from kvarn.cluster.blocks import AnyNode, read_blocks
from kvarn.cluster.queue import Queue
from kvarn.cluster.ray_start import connected
from kvarn.cluster.ray_workers import RayWorkers
from kvarn.cluster.reading import HomeNodes, ReaderConfig, read_texts
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.model import Model
from kvarn.runtime.packs.notes import texts_in
from kvarn.runtime.packs.ranking import rank_packs
from kvarn.runtime.prefill import BlocksPrefill
from kvarn.runtime.store import Disk

from . import deadly
from .deadly import Deadly, DeadlyAsking, DeadlyBlocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("ray") is None, reason="Ray is not installed: pip install 'ray>=2.60'"
    ),
]

CTX = 8192
LENGTHS = 5000, 900, 2600, 4100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head without CPUs, and two nodes of one CPU."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    settings = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in settings.items():
            patched.setenv(name, value)
        from ray import cloudpickle  # which reads the settings
        from ray.cluster_utils import Cluster

        cloudpickle.register_pickle_by_value(deadly)  # Ray's workers import no tests
        small = {"include_dashboard": False, "object_store_memory": 90 << 20}
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        for _ in range(2):
            nodes.add_node(num_cpus=1, object_store_memory=90 << 20)
        nodes.wait_for_nodes()
        yield nodes
        nodes.shutdown()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("texts")
    files = {}
    for i, length in enumerate(LENGTHS):
        files[f"t{i}"] = folder / f"t{i}.txt"
        files[f"t{i}"].write_text((f"The wheel {i} turned. " * length)[:length])
    return files


@pytest.fixture(scope="module")
def wanted(
    tiny: Model, texts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[bytes]]:
    """K and V of each pack, as this process writes it."""
    folder = tmp_path_factory.mktemp("wanted")
    for name, file in texts.items():
        kvarn.build_pack(tiny, folder / name, file.read_text(), CTX)
    return written(folder, texts)


def written(folder: Path, names: Any) -> dict[str, list[bytes]]:
    layers = {name: sorted((folder / name).glob("layer-*")) for name in names}
    return {name: [file.read_bytes() for file in files] for name, files in layers.items()}


def reading_queue(module: Any, reading: ReaderConfig, lines: list[str]) -> Queue:
    return Queue(RayWorkers(module, reading, 1, 1), HomeNodes(), lines.append)


def test_a_killed_worker_goes_on_from_its_last_commit(
    cluster: Any, tiny_path: Path, texts: dict[str, Path], wanted: Any, tmp_path: Path
) -> None:
    lines: list[str] = []
    (tmp_path / "library").mkdir()
    reading = Deadly(tmp_path / "library", tiny_path, n_ctx=CTX, dies="t0")
    with connected(cluster.address, 1, 1) as module:
        outcomes = list(read_texts(reading_queue(module, reading, lines), texts))
        again = list(read_texts(reading_queue(module, reading, lines), texts))
    n_read = {one.key: one.result.outcome.n_read for one in outcomes}
    assert n_read.keys() == texts.keys()
    assert 0 < n_read["t0"] < n_read["t3"]  # t0 is the longer one
    assert any("the worker died; t0 is given out again" in line for line in lines)
    assert written(tmp_path / "library", texts) == wanted
    assert [one.result.outcome.n_read for one in again] == [0] * len(texts)


def test_a_worker_that_is_there_and_does_not_answer_is_started_anew(
    cluster: Any,
    tiny_path: Path,
    texts: dict[str, Path],
    wanted: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "SILENCE_SECONDS", 20.0)
    lines: list[str] = []
    (tmp_path / "library").mkdir()
    reading = Deadly(tmp_path / "library", tiny_path, n_ctx=CTX, dies="t0", by=signal.SIGSTOP)
    with connected(cluster.address, 1, 1) as module:
        outcomes = list(read_texts(reading_queue(module, reading, lines), texts))
    assert {one.key for one in outcomes} == texts.keys()
    assert any("the worker has not answered in 20 s" in line for line in lines)
    assert any("the worker died; t0 is given out again" in line for line in lines)
    assert written(tmp_path / "library", texts) == wanted


def test_a_text_that_kills_workers_is_given_up(
    cluster: Any, tiny_path: Path, texts: dict[str, Path], wanted: Any, tmp_path: Path
) -> None:
    (tmp_path / "library").mkdir()
    folder, few = tmp_path / "library", {name: texts[name] for name in ("t1", "t2")}
    reading = Deadly(folder, tiny_path, n_ctx=CTX, dies="t1", times=99, at=0)
    with connected(cluster.address, 1, 1) as module:
        outcomes = {one.key: one for one in read_texts(reading_queue(module, reading, []), few)}
    assert "given up: 4 workers died of it" in str(outcomes["t1"].result)
    assert (folder / ".died").read_text() == "xxxx"
    assert written(folder, ["t2"]) == {"t2": wanted["t2"]}
    states = {one.name: one.state for one in texts_in(folder)}
    assert states == {"t1": "given up", "t2": "read"}


def build_command(cluster: Any, model: Path, texts: dict[str, Path], folder: Path) -> list[str]:
    words = ["pack", "build", "--each", "-m", str(model), "--ctx", str(CTX), "-t", "1"]
    files = [str(file) for file in texts.values()]
    line = [*words, "--ray", cluster.address, "-f", *files, "-o", f"{folder}/library/"]
    return [sys.executable, "-m", "kvarn", *line]


def test_a_killed_command_goes_on(
    cluster: Any, tiny_path: Path, texts: dict[str, Path], wanted: Any, tmp_path: Path
) -> None:
    command = build_command(cluster, tiny_path, texts, tmp_path)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        wait_for(tmp_path / "library" / ".kvarn" / "t0")
        first.kill()
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert written(tmp_path / "library", texts) == wanted


def test_the_command_reads_and_asks(
    cluster: Any, tiny_path: Path, texts: dict[str, Path], wanted: Any, tmp_path: Path
) -> None:
    command = build_command(cluster, tiny_path, texts, tmp_path)
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    assert "4 of 4 files have a pack" in run.stderr
    assert written(tmp_path / "library", texts) == wanted
    question = ["-t", "1", "-n", "6", "--best", "2", "--json", "Who turned the wheel?"]
    answers = []
    for ray_words in (["--ray", cluster.address], []):
        command = [sys.executable, "-m", "kvarn", "ask", *ray_words, "--packs"]
        command += [f"{tmp_path}/library", *question]
        run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
        assert run.returncode == 0, run.stderr
        answers.append(json.loads(run.stdout)["answers"])
    for one in answers[0]:
        assert one.pop("node").startswith("127.0.0.1")
    assert answers[0] == answers[1] and len(answers[0]) == 2


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_blocks_of_a_lost_worker_are_given_out_again(
    cluster: Any,
    tiny: Model,
    tiny_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: signal.Signals,
) -> None:
    """Then the command finds all read."""
    monkeypatch.setattr(queue, "SILENCE_SECONDS", 20.0)
    text, prefill, lines = "The wheel turned. " * 400, BlocksPrefill(2048), list[str]()
    kvarn.build_pack(tiny, tmp_path / "one", text, CTX, prefill)
    (tmp_path / "mark").touch()
    reading = DeadlyBlocks(
        ReaderConfig(tmp_path, tiny_path, n_ctx=CTX), "pack", text, prefill, "mark", by
    )
    with connected(cluster.address, 1, 1) as module:
        jobs = Queue(RayWorkers(module, reading, 1, 1), AnyNode(), lines.append)
        keys = [outcome.key for outcome in read_blocks(jobs)]
    blocks = [f"block {i} of 3" for i in (1, 2, 3)]
    assert (keys[0], sorted(keys[1:-1]), keys[-1]) == ("the first tokens", blocks, "the rest")
    assert any("the worker died; block 2 of 3 is given out again" in line for line in lines)
    assert written(tmp_path, ["pack"])["pack"] == written(tmp_path, ["one"])["one"]
    (tmp_path / "text").write_text(text)
    line = ["pack", "build", "--each-block", "--prefill", "blocks:2048", "-m", str(tiny_path)]
    line += ["--ctx", str(CTX), "-t", "1", "--ray", cluster.address, "-o", f"{tmp_path}/pack"]
    command = [sys.executable, "-m", "kvarn", *line, "-f", f"{tmp_path}/text"]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    assert ": all were there (prefill: blocks:2048" in run.stderr.splitlines()[-1]
    assert not list(tmp_path.glob(".kvarn-*"))


def test_a_killed_worker_is_asked_again(
    cluster: Any, tiny: Model, tiny_path: Path, texts: dict[str, Path], tmp_path: Path
) -> None:
    for name, file in texts.items():
        kvarn.build_pack(tiny, tmp_path / name, file.read_text(), CTX)
    request = ContextRequest(store=Disk(tmp_path / "PACK", read_only=True))
    asking = DeadlyAsking((tmp_path,), request, "Who turned the wheel?", tiny_path)
    lines: list[str] = []
    with connected(cluster.address, 1, 1) as module:
        shelves = Shelves(lines.append)
        jobs = Queue(RayWorkers(module, asking, 1, 1), shelves, lines.append)
        gains = ClusterAsker(jobs, shelves, lines.append).gains()
    packs = [ContextRequest(store=Disk(tmp_path / name, read_only=True)) for name in texts]
    fits = rank_packs(tiny, packs, "Who turned the wheel?")
    assert [gains[id] for id in gains] == pytest.approx([fit.gain for fit in fits])
    assert (tmp_path / ".died").exists()
    assert any("the worker died" in line for line in lines)


def test_the_texts_of_a_lost_node_are_read_by_another(
    cluster: Any, tiny_path: Path, texts: dict[str, Path], wanted: Any, tmp_path: Path
) -> None:
    """The last test: a node goes."""
    lines: list[str] = []
    (tmp_path / "library").mkdir()
    reading = Deadly(tmp_path / "library", tiny_path, n_ctx=CTX, dies="t0", hangs=True)
    outcomes, lost = {}, ""
    with connected(cluster.address, 1, 1) as module:
        jobs = reading_queue(module, reading, lines)
        for outcome in read_texts(jobs, texts):
            outcomes[outcome.key] = outcome
            if not lost:
                wait_for(tmp_path / "library" / ".died")
                (lost,) = (one.node for one in jobs.running.values() if one.job.key == "t0")
                nodes = cluster.list_all_nodes()
                (node,) = (node for node in nodes if lost.endswith(node.node_id[:6]))
                cluster.remove_node(node, allow_graceful=False)
    assert outcomes.keys() == texts.keys()
    assert outcomes["t0"].node != lost
    # The worker is seen to have died at once, its machine to be gone seconds later, if at all.
    assert any(line.startswith(lost) for line in lines)
    assert written(tmp_path / "library", texts) == wanted


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
