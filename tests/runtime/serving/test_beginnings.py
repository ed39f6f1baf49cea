"""Digests of what a server has read, asked for by several threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import kvarn
from kvarn.ops.arrays import U32
from kvarn.runtime.home import pack_path
from kvarn.runtime.model import Model
from kvarn.runtime.serving.library import Library
from kvarn.runtime.serving.requests import beginnings
from kvarn.runtime.serving.requests.beginnings import STEP, Beginnings, digests_of

IDS = np.random.default_rng(3).integers(1, 250, 2 * STEP + 5).tolist()
WAIT = 0.5
"""Seconds for which one look-up waits for another in the same pack, which must not come."""


@pytest.fixture
def asked(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Beginnings:
    monkeypatch.setenv("KVARN_HOME", str(tmp_path))
    kvarn.build_pack(model, pack_path("mill"), IDS)
    return Beginnings(model, Library(model, tmp_path / "serve", 0, lambda line: None))


def test_two_look_ups_at_once_read_a_pack_once(
    asked: Beginnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads of an engine look packs up: the second takes what the first has found."""
    both, read, pack_ids = threading.Barrier(2), list[Path](), beginnings.pack_ids

    def counted(path: Path) -> U32:
        read.append(path)
        with suppress(threading.BrokenBarrierError):
            both.wait(WAIT)  # for one that reads at the same time
        return pack_ids(path)

    monkeypatch.setattr(beginnings, "pack_ids", counted)
    expected = sorted(digests_of(np.asarray(IDS, np.uint32), asked.model))
    with ThreadPoolExecutor(2) as pool:
        held = list(pool.map(lambda _: asked.all_digests(), range(2)))
    assert held == [expected, expected] and len(expected) == 2
    assert read == [pack_path("mill")]


def test_a_pack_that_has_grown_is_read_again(asked: Beginnings, model: Model) -> None:
    before = asked.all_digests()
    longer = [*IDS, *IDS]
    kvarn.build_pack(model, pack_path("mill"), longer)
    expected = digests_of(np.asarray(longer, np.uint32), asked.model)
    assert asked.all_digests() == sorted(expected) and set(before) < set(expected)
