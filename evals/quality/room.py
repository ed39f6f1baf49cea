"""Whether this machine has room for the contexts of an evaluation, before any of them is made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.keep.evicting import EvictingKeep
from ...runtime.memory import human_bytes
from ...runtime.store import Ram
from ...system.files import disk_free
from .plan import EvalError

if TYPE_CHECKING:
    from ...runtime.model import Model
    from .plan import Plan


def check_memory(model: Model, plan: Plan) -> None:
    """Raises what a context of the longest length raises where tokens are evicted in memory:
    `StoreError` where that has no room, `KeepError` for a budget that does not fit."""
    longest, ram = max(plan.lengths), Ram(*plan.kinds)
    for arm in plan.arms:
        keep = arm.keep_for(longest)
        if isinstance(keep, EvictingKeep) and keep.evicts(longest):
            ram.check_slots(model.config, keep.plan(model.config, longest))
        elif not arm.keeps_all:
            ram.check(model.config, longest)


def check_disk(model: Model, plan: Plan, work: Path, packs: Iterable[Path]) -> None:
    """Raises `EvalError` where the disk of `work` has no room for K and V of the longest context.
    packs: of the contexts of that length; those that are there need none."""
    longest = max(plan.lengths)
    needed = Ram(*plan.kinds).empty(model.config).bytes_for(longest)
    free = disk_free(work)
    if needed > free and not all(pack.is_dir() for pack in packs):
        k, v = plan.kinds
        raise EvalError(
            f"a context of {longest:,} tokens needs {human_bytes(needed)} of KV cache (K {k}, V "
            f"{v}) and the disk of {work} has {human_bytes(free)}: use a smaller --length, a "
            "smaller --kv-type (q8_0, q4_0), or --work DIR on another disk"
        )
