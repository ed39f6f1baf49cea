"""`-hf USER/REPO[:QUANT]`: a model of the hub, pulled where it is not on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvarn.convert.hub import find_pulled

from .hub_server import Hub, Repository

Run = Callable[..., "subprocess.CompletedProcess[str]"]
MODEL = ("-n", "2", "--temp", "0", "-c", "64")


@pytest.fixture
def kvarn(hub: Hub, tmp_path: Path, tiny_path: Path) -> Run:
    """Runs a command of a user with an empty home, beside a hub with one repository."""
    data = tiny_path.read_bytes()
    files = {"tiny-F16.gguf": data, "tiny-Q8_0.gguf": data + bytes(32), "config.json": b"{}"}
    hub.repositories["org/tiny"] = Repository({**files, "model.safetensors": bytes(5000)})
    hub.repositories["org/weights"] = Repository(dict.fromkeys(("config.json", "README.md"), b"{}"))

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "KVARN_HOME": str(tmp_path / "home"),
        }
        return subprocess.run(
            [sys.executable, "-m", "kvarn", *words],
            env=os.environ | own | environment, cwd=tmp_path, input="", capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip

    return run


def test_it_is_pulled_once_and_becomes_the_last_model(kvarn: Run, hub: Hub, tmp_path: Path) -> None:
    first = kvarn("run", "-hf", "org/tiny:f16", "-p", "x", *MODEL)
    assert first.returncode == 0, first.stderr
    assert first.stdout
    assert "using tiny-F16.gguf" in first.stderr
    n_requests = len(hub.requests)
    for words in (["-hf", "org/tiny:F16"], []):
        again = kvarn("run", *words, "-p", "x", *MODEL)
        assert (again.returncode, again.stdout) == (0, first.stdout), again.stderr
    assert len(hub.requests) == n_requests
    offline = kvarn("bench", "-hf", "hf.co/org/tiny", *"-p 2 -n 1 -r 1".split(), HF_HUB_OFFLINE="1")
    assert offline.returncode == 0, offline.stderr
    listed = kvarn("ls").stdout
    assert "pulled" in listed and "tiny-F16.gguf" in listed
    assert kvarn("chat", "--hf-repo", "org/tiny:F16", "-c", "64").returncode == 0
    new = {"KVARN_HOME": str(tmp_path / "new")}
    assert kvarn("chat", "-hf", "org/tiny:F16", "-c", "64", **new).returncode == 0
    assert json.loads(kvarn("ls", "--json", **new).stdout)["models"][0]["from"] == "pulled"
    assert not hub.bodies("model.safetensors")


def test_without_a_quantisation_a_ready_model_is_taken(kvarn: Run, hub: Hub) -> None:
    done = kvarn("run", "-hf", "org/tiny", "-p", "x", *MODEL)
    assert done.returncode == 0, done.stderr
    assert "using tiny-Q8_0.gguf" in done.stderr
    assert not hub.bodies("model.safetensors")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("org/tiny:Q4_K_M", "there is no 'Q4_K_M'; it has F16, Q8_0"),
        ("org/weights", "it has no GGUF file: pull its weights with `kvarn hf-pull` and convert"),
        ("org/none", "there is no repository org/none"),
        ("tiny", "tiny"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(kvarn: Run, name: str, told: str) -> None:
    done = kvarn("run", "-hf", name, "-p", "x", *MODEL)
    assert (done.returncode, done.stdout) == (1, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_hf_pull_takes_the_same_name(kvarn: Run) -> None:
    done = kvarn("hf-pull", "org/tiny:F16")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("tiny-F16.gguf\n")
    assert "names the file already" in kvarn("hf-pull", "org/tiny:F16", "--include", "x").stderr


@pytest.mark.parametrize(
    ("tag", "taken"), [("BF16", True), ("", True), ("latest", True), ("F16", False), ("p", False)]
)
def test_a_pulled_file_is_taken_unasked_only_for_its_own_type(
    tag: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--pair"
    model = repository / "snapshots" / ("a" * 40) / "p-BF16.gguf"
    for path, content in ((repository / "refs" / "main", "a" * 40), (model, "GGUF")):
        path.parent.mkdir(parents=True)
        path.write_text(content)
    assert find_pulled("org/pair", tag) == (model if taken else None)
