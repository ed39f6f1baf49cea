"""What packs keep of their probes, of processes that are killed or stopped."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarn.jit.launch.launcher import Stopped
from kvarn.runtime.model import Model
from kvarn.runtime.packs.pack import build_pack, pack_info
from kvarn.runtime.prefill import SparsePrefill
from kvarn.runtime.store import Disk
from kvarn.runtime.store.disk.checking.verify import verify
from kvarn.runtime.store.disk.format.prompts import probe_of

from ...programs import killed
from ..reading import ids_of
from .pack_files import bytes_of
from .sparse_reading import N

SPARSE = SparsePrefill(k=40, index="hash", from_=1024, rerank=1)

KILLED = """
import os, signal, sys
from pathlib import Path
import kvarn
from kvarn.runtime.packs.pack import build_pack

def kill(done, total):
    if done == 2048:
        os.kill(os.getpid(), signal.SIGKILL)

path, pack, ids = sys.argv[1:]
prefill = kvarn.SparsePrefill(k=40, index="hash", from_=1024, rerank=1, probe=64)
ids = [int(i) for i in ids.split(",")]
build_pack(kvarn.load(path, threads=1), Path(pack), ids, len(ids), prefill=prefill, progress=kill)
"""


def test_what_a_killed_process_has_measured_is_kept(model: Model, tmp_path: Path) -> None:
    """Numbers, K, V and columns are those of a process that nobody killed."""
    ids, prefill = ids_of(model, N), replace(SPARSE, probe=64)
    whole, path = tmp_path / "whole", tmp_path / "pack"
    build_pack(model, whole, ids, N, prefill=prefill)
    killed(KILLED, model.path, path, ",".join(map(str, ids)))
    assert pack_info(path).n_tokens == 2048
    assert pack_info(path).probe[0].n_tokens == 1024 // 64
    build_pack(model, path, ids, N, prefill=prefill)
    assert pack_info(path).probe == pack_info(whole).probe
    assert bytes_of(path) == bytes_of(whole)


def test_what_a_stopped_pass_has_measured_does_not_count(model: Model, tmp_path: Path) -> None:
    """Stopped in its second layer, and read again by the same context."""
    ids, prefill, flag = ids_of(model, 2048), replace(SPARSE, probe=64), np.zeros(1, np.int64)
    for name in ("whole", "stopped"):
        with model.context(N, store=Disk(tmp_path / name), prefill=prefill) as context:
            context.prefill(ids[:1536])
            context.stop_at(flag.ctypes.data)
            if name == "stopped":
                cache = context.reader.cache
                context.reader.cache = Stopping(cache, flag)
                with pytest.raises(Stopped):
                    context.prefill(ids[1536:])
                flag[0], context.reader.cache = 0, cache
            context.prefill(ids[1536:])
    assert pack_info(tmp_path / "stopped").probe == pack_info(tmp_path / "whole").probe


class Stopping:
    """Sets the flag once the last layer has attended."""

    def __init__(self, inner: Any, flag: np.ndarray) -> None:
        self._inner, self._flag = inner, flag

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, layer: int, *arrays: Any) -> None:
        self._inner(layer, *arrays)
        self._flag[0] = layer == 1


def test_what_a_probe_measures_is_kept_and_grows(model: Model, tmp_path: Path) -> None:
    """The means over all sessions."""
    ids, path = ids_of(model, N), tmp_path / "pack"
    with pytest.raises(InterruptedError):
        build_pack(model, path, ids, N, progress=_stop_at(1536), prefill=replace(SPARSE, probe=64))
    (first,) = pack_info(path).probe
    assert (first.layer, first.n_tokens) == (0, (1536 - 1024) // 64)
    build_pack(model, path, ids, N, prefill=replace(SPARSE, probe=32))
    (both,) = pack_info(path).probe
    assert both.n_tokens == first.n_tokens + -(-(N - 1536) // 32)
    build_pack(model, path, ids, N)  # nothing is left to read
    assert pack_info(path).probe == [both]
    assert not list(verify(path))
    with model.context(N, prefill=replace(SPARSE, probe=32)) as context:
        context.prefill(ids)
        whole = context.stats.as_dict()["prompt_layers"][0]
    share = first.n_tokens / both.n_tokens
    later = (both.output_error - share * first.output_error) / (1 - share)
    assert 0.5 * whole["output_error"] < later < 2 * whole["output_error"]
    assert 0 < first.output_error != both.output_error
    for probe in ({"7": [1, 0.5, 0.5]}, {"0": [0, 0.5, 0.5]}, {"0": [1, "a", 0.5]}, {"0": [1]}, []):
        with pytest.raises(ValueError, match=r"found|unpack|probe is"):
            probe_of(probe, 4)


def _stop_at(n_tokens: int):
    def progress(done: int, total: int) -> None:
        if done >= n_tokens:
            raise InterruptedError

    return progress
