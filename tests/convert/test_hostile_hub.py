"""Whatever a hub answers: one line or the file, nothing elsewhere, nothing wrong remembered."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import hostile_cases, hostile_hub
from .hostile_hub import FILE, SIZE, Case
from .hub_server import TOKEN, Hub, git_id, tiny_gguf

# One process pulls them all: the time that a hub is given is shorter, and each result is told.
SCRIPT = """
import io, json, os, sys, time, traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from kvarn.cli import main
from kvarn.convert.hub import ask, fetch

ask.STALL_SECONDS = 0.7
ask.LISTING_SECONDS = 1.5
ask.USUAL_WAIT = 0.01
fetch.WAITS = (0.01,)
fetch.MAX_ATTEMPTS = 2
last = Path(os.environ["KVARN_HOME"]) / "last.json"
results = {}
for repo in json.load(sys.stdin):
    last.unlink(missing_ok=True)
    out, err, start = io.StringIO(), io.StringIO(), time.monotonic()
    trace = ""
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(["hf-pull", repo, "--include", "*"])
        except BaseException:
            code, trace = None, traceback.format_exc()
    results[repo] = {"code": code, "trace": trace, "out": out.getvalue(), "err": err.getvalue(),
                     "remembered": last.exists(), "seconds": time.monotonic() - start}
print(json.dumps(results))
"""
HONEST = tiny_gguf(SIZE)
ALL = hostile_cases.cases()


def pulled(tmp_path: Path, hub: Hub, repos: list[str]) -> dict[str, Any]:
    """How `hf-pull` of each ended."""
    environment = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "deep" / "er" / "hf"),
        "HF_TOKEN": TOKEN,
        "KVARN_HOME": str(tmp_path / "home"),
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(repos),
        env=inherited | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    results: dict[str, Any] = json.loads(done.stdout)
    return results


def check_case(case: Case, result: dict[str, Any]) -> None:
    """One line and no traceback where it is refused; the right file where it is not."""
    assert not result["trace"], case.name + "\n" + result["trace"]
    assert result["code"] == (0 if case.well else 1), (case.name, result)
    assert result["seconds"] < 10, (case.name, result)
    assert result["remembered"] == case.well, (case.name, result)
    lines = result["err"].splitlines()
    assert all(line.startswith("kvarn: ") for line in lines), (case.name, result)
    assert not any(ord(c) < 32 for line in lines for c in line), (case.name, result)
    if case.well:
        path = Path(result["out"].strip())
        assert (path if path.is_file() else path / FILE).read_bytes() == HONEST, case.name
    else:
        assert result["out"] == "" and lines, (case.name, result)


def check_disk(tmp_path: Path) -> None:
    """All lies in the cache, its links stay inside, and its blobs are what they are named."""
    cache = tmp_path / "deep" / "er" / "hf" / "hub"
    for path in tmp_path.rglob("*"):
        inside = path.is_relative_to(cache) and path != cache
        assert inside or path.is_dir() or path.parent == tmp_path / "home", path
        if inside and path.is_symlink():
            assert path.resolve(strict=True).is_relative_to(cache), path
        elif inside and path.is_file() and path.parent.name == "blobs":
            data = path.read_bytes()
            assert path.name in (hashlib.sha256(data).hexdigest(), git_id(data)), path


def check_all(tmp_path: Path, hub: Hub, some: list[Case]) -> None:
    hostile_hub.install(hub, some)
    results = pulled(tmp_path, hub, [case.repo for case in some])
    for case in some:
        check_case(case, results[case.repo])
    check_disk(tmp_path)


def test_a_tenth_of_all_hostile_answers(tmp_path: Path, hub: Hub) -> None:
    check_all(tmp_path, hub, ALL[::10])


@pytest.mark.slow
def test_all_hostile_answers(tmp_path: Path, hub: Hub) -> None:
    assert len(ALL) >= 200
    check_all(tmp_path, hub, ALL)
