"""Where Ray is not installed, or not asked for."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import kvarn
from kvarn.cluster import ray_start
from kvarn.cluster.ray_start import connected
from kvarn.system.errors import KvarnError
from kvarn.system.extras import how_to_install

from ..pack_runner import Kvarn

ROOT = Path(kvarn.__file__).resolve().parent
ROOMS = [path for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()]


IMPORT = re.compile(r"^( *)(?:import|from) ray\b|import_module\(\"ray", re.MULTILINE)


def test_one_room_imports_ray_and_only_when_it_is_asked() -> None:
    importing = {
        str(path.relative_to(ROOT)): [found[1] for found in IMPORT.finditer(path.read_text())]
        for room in ROOMS
        for path in room.rglob("*.py")
    }
    found = {name: indents for name, indents in importing.items() if indents}
    assert found.keys() == {"cluster/ray_start.py", "cluster/ray_workers.py"}
    assert all(indent != "" for indents in found.values() for indent in indents)  # in functions


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.mark.parametrize("words", [("--each",), ("--each-block", "--prefill", "blocks:1024")])
def test_without_ray_one_line_says_how_to_install_it(
    no_ray: None, run: Kvarn, tmp_path: Path, words: tuple[str, ...]
) -> None:
    line = ("pack", "build", *words, *run.model, "-f", run.text, "-o", f"{tmp_path}/new/")
    code, out, err = run(*line, "--ray", "local")
    assert (code, out, list((tmp_path / "new").glob("*"))) == (1, "", [])
    assert err == f"kvarn: --ray needs the package ray: {how_to_install('ray')}\n"


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("head", "expected local, auto, or HOST:PORT"),
        ("ray://head:10001", "expected local, auto, or HOST:PORT"),
        ("127.0.0.1:1", "does not answer"),
    ],
)
def test_addresses_where_no_cluster_is_are_refused(
    address: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_start, "_imported", object)
    with pytest.raises(KvarnError, match=told), connected(address, 1, 1):
        pass


@pytest.mark.parametrize(
    ("stdout", "stderr", "told"),
    [
        (
            "refused: Version mismatch: The cluster: 2.60\n This: 2.61",
            "",
            "cluster: 2.60 This: 2.61 (all",
        ),
        (
            "refused: not reached",
            "InvalidAuthToken",
            "it wants another token than this machine has",
        ),
        ("", "Fatal Python error: Aborted", "what answers there is no Ray"),
    ],
)
def test_clusters_that_refuse_are_told_in_one_line(
    stdout: str, stderr: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the process says that tries to connect first."""

    def tried(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, stdout, stderr)

    monkeypatch.setattr(ray_start, "_imported", object)
    monkeypatch.setattr(ray_start.subprocess, "run", tried)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(KvarnError) as raised, connected(address, 1, 1):
            pass
    line = str(raised.value)
    assert line.startswith(f"--ray {address}: ") and told in line and "\n" not in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("--ray", "local"),
            "--ray reads many texts, or the blocks of one: give --each or --each-block",
        ),
        (("--each", "--ray-workers", "2"), "--ray-workers has no effect without --ray"),
        (("--each", "--ray", "local", "--device", "cuda"), "--ray computes on CPUs: omit --device"),
    ],
)
def test_options_without_effect_are_refused(run: Kvarn, words: tuple[str, ...], told: str) -> None:
    code, out, err = run("pack", "build", *run.model, "-f", run.text, "-o", "./library/", *words)
    assert (code, out, err.count("\n")) == (2, "", 1) and told in err


def test_what_ray_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    mismatch = (
        "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.11.7\n"
        "This process on node 10.0.0.7 was started with:\n    Ray: 2.61.0\n    Python: 3.12.1\n"
    )

    class Refusing:
        @staticmethod
        def init(**options: object) -> None:
            raise RuntimeError(mismatch)

    monkeypatch.setattr(ray_start, "_imported", Refusing)
    with pytest.raises(KvarnError) as raised, connected("auto", 1, 1):
        pass
    line = str(raised.value)
    assert line.startswith(
        "--ray auto: Version mismatch: The cluster was started with: Ray: 2.60.0"
    )
    assert "Ray: 2.61.0" in line and "\n" not in line
