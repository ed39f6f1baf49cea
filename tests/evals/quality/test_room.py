"""Contexts for which there is no room: refused before a text is made."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvarn.evals.quality import Arm
from kvarn.evals.quality.plan import EvalError
from kvarn.runtime.attend import Full
from kvarn.runtime.keep import KEEPS
from kvarn.runtime.model import Model
from kvarn.runtime.store import StoreError

from .runs import FULL, HASH, PLAN, run

LONG = 1 << 32
"""Tokens, for which no machine of today has the memory."""


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many bytes a disk has."""
    return lambda n: monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=n))


def test_a_length_that_the_disk_does_not_hold_is_refused_at_once(
    tiny: Model, tmp_path: Path, free: Callable[[int], None]
) -> None:
    """Also where a shorter one comes first. K and V of 2 layers with 2 heads, padded to 32 f16."""
    needed = LONG * 2 * 2 * 2 * 32 * 2
    work = tmp_path / "work"
    free(needed - 1)
    wanted = replace(PLAN, lengths=(600, LONG))
    with pytest.raises(EvalError, match=f"a context of {LONG:,} tokens needs 2 TiB of KV cache"):
        run(tiny, wanted, work)
    assert not work.exists()


def test_what_evicts_needs_memory_for_its_budget(tiny: Model, tmp_path: Path) -> None:
    arms = (FULL, Arm("full", "", "streaming", "80%", Full(), KEEPS["streaming"]("80%")))
    with pytest.raises(StoreError, match=r"keeping 3,435,973,837 tokens needs .* KV cache"):
        run(tiny, replace(PLAN, lengths=(LONG,), arms=arms), tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_packs_that_are_there_need_no_room(
    tiny: Model, tmp_path: Path, free: Callable[[int], None]
) -> None:
    rows, _ = run(tiny, replace(PLAN, arms=(FULL,)), tmp_path)
    free(0)
    again, _ = run(tiny, replace(PLAN, arms=(FULL, HASH)), tmp_path)
    assert [row.score for row in again if row.arm == FULL] == [row.score for row in rows]
    with pytest.raises(EvalError, match="use a smaller --length"):
        run(tiny, replace(PLAN, n_contexts=3), tmp_path)
