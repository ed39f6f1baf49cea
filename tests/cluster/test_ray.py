"""With a Ray of three nodes on loopback: processes and nodes that die change no byte of a pack."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import kvarn
from kvarn.cluster.queue import Queue
from kvarn.cluster.ray_start import connected
from kvarn.cluster.ray_workers import RayWorkers
from kvarn.cluster.reading import Homes, Reader, Reading, TextBytes, TextRead, read_texts
from kvarn.runtime.model import Model

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray>=2.60'")
pytestmark = pytest.mark.slow

CTX, DIES_AT = 8192, 1500
LENGTHS = 5000, 900, 2600, 4100


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head without CPUs, and two nodes of one CPU."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    token.chmod(0o600)
    settings = {
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in settings.items():
            patched.setenv(name, value)
        from ray.cluster_utils import Cluster

        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
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


@dataclass(frozen=True)
class Deadly(Reading):
    """Readings whose process dies, once, in the text `dies`."""

    dies: str = ""

    def __call__(self, threads: int) -> Reader:
        return DeadlyReader(self, threads)


class DeadlyReader(Reader):
    def do(self, work: TextBytes, tell: Callable[[int, int], None]) -> TextRead:
        deadly: Any = self._reading
        mark = deadly.folder / ".died"

        def dying(done: int, total: int) -> None:
            tell(done, total)
            if work.name == deadly.dies and done >= DIES_AT and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        return super().do(work, dying)


def read(address: str, reading: Reading, texts: dict[str, Path], lines: list[str]) -> Iterator[Any]:
    with connected(address, 1, 1) as module:
        queue = Queue(RayWorkers(module, reading, 1, 1), Homes(), lines.append)
        yield from read_texts(queue, texts)


def test_a_killed_worker_goes_on_from_its_last_commit(
    cluster: Any, tiny_path: Path, texts: dict[str, Path], wanted: Any, tmp_path: Path
) -> None:
    lines: list[str] = []
    (tmp_path / "library").mkdir()
    reading = Deadly(tmp_path / "library", tiny_path, n_ctx=CTX, dies="t0")
    n_read = {
        one.key: one.result.outcome.n_read for one in read(cluster.address, reading, texts, lines)
    }
    assert n_read.keys() == texts.keys()
    assert 0 < n_read["t0"] < n_read["t3"]  # t0 is the longer one
    assert any("the worker died; t0 is given out again" in line for line in lines)
    assert written(tmp_path / "library", texts) == wanted
    again = list(read(cluster.address, reading, texts, lines))
    assert [one.result.outcome.n_read for one in again] == [0] * len(texts)


def test_the_command_reads_and_asks(
    cluster: Any, tiny_path: Path, texts: dict[str, Path], wanted: Any, tmp_path: Path
) -> None:
    words = ["pack", "build", "--each", "-m", str(tiny_path), "--ctx", str(CTX), "-t", "1"]
    files = [str(file) for file in texts.values()]
    line = [*words, "--ray", cluster.address, "-f", *files, "-o", f"{tmp_path}/library/"]
    command = [sys.executable, "-m", "kvarn", *line]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    assert "4 of 4 files have a pack" in run.stderr
    assert written(tmp_path / "library", texts) == wanted


def test_the_texts_of_a_lost_node_are_read_by_another(
    cluster: Any, tiny_path: Path, texts: dict[str, Path], wanted: Any, tmp_path: Path
) -> None:
    """The last test: a node goes."""
    lines: list[str] = []
    reading = Reading(tmp_path / "library", tiny_path, n_ctx=CTX)
    outcomes = []
    for outcome in read(cluster.address, reading, texts, lines):
        if not outcomes:
            cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)
        outcomes.append(outcome)
    assert {one.key for one in outcomes} == texts.keys()
    assert (
        any("the machine is gone" in line for line in lines)
        or len({one.node for one in outcomes[1:]}) == 1
    )
    assert written(tmp_path / "library", texts) == wanted
