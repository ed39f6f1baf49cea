"""Stores and packs through libkvarn: killed processes, several of them, a full disk."""

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.loading.load import load
from kvarn.runtime.store import Disk

Host = Callable[..., Any]
IDS = [20 + i * 7919 % 200 for i in range(2000)]


def test_killed_while_it_reads_a_store_goes_on_from_there(host: Host, tmp_path: Path) -> None:
    """Twice, at the end of a chunk and between two; the logits are those of one reading."""
    store = tmp_path / "store"
    host("stores.py", "resumes", store, 512, code=-signal.SIGKILL)
    host("stores.py", "resumes", store, 1000, code=-signal.SIGKILL)
    found = host("stores.py", "resumes", store, 10_000)
    assert found["held"] in (512, 1024)  # the last chunk's progress may be told before its commit
    expected = load(default_model_path()).context(4096).prefill(IDS)
    np.testing.assert_array_equal(np.array(found["logits"], np.float32), expected)


def test_a_store_that_another_process_writes_is_refused(host: Host, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with load(default_model_path()).context(4096, store=Disk(store)) as context:
        context.prefill(IDS[:10])
        opening, building = host("stores.py", "collides", store)
    assert "another process or context is writing to it" in opening
    assert building.startswith("-1 ") and "another process or context is writing" in building


def test_a_full_disk_loses_nothing_that_was_saved(host: Host, tmp_path: Path) -> None:
    """A file system of 5 MiB: there is room for a chunk, and not for a full segment."""
    space = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*space, "true"], check=False).returncode:
        pytest.skip("this user cannot mount a small file system")
    mount = f"mount -t tmpfs -o size=5m none '{tmp_path}'"
    within = [*space, "sh", "-c", mount + ' && exec "$0" "$@"']
    found = host("stores.py", "fills", tmp_path / "store", within=within)
    assert found["code"] == -1
    assert "No space left on device" in found["said"] and "keeps its last commit" in found["said"]
    assert found["freed"] == [1, ""]
    assert found["held"] == 1024
