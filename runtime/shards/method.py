"""The attend method of a context whose pack is held by shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...system.spelling import spelt
from ..attend import Attend, AttendError, BoundAttend, Full, Hash, TopK
from ..loading.model_info import ModelInfo
from ..methods import called
from ..store import KVStore
from ..store.disk.store import DiskStore
from .addresses import Shards

CHOICES = ("all", "each")


def unsupported(method: Attend, choice: str) -> str | None:
    """What shards cannot do of a method, with one of `CHOICES`."""
    if type(method) is Full:
        return None
    if type(method) not in (Hash, TopK):
        return f"{spelt('method')} {method.name}"
    assert isinstance(method, Hash | TopK)
    if method.tail != "none":
        return f"{spelt('tail')} {method.tail}"
    if method.probe:
        return spelt("probe")
    if isinstance(method, Hash):
        return spelt("rerank") if method.rerank != 1 else None
    if method.index == "flat" or choice == "each":
        return None
    return f"{spelt('index')} {method.index} with {spelt('shards_choice')} all"


@dataclass(frozen=True)
class Sharded(Attend):
    """Attention to a pack whose first segments are held by shards (`kvarn shard`).

    shards: see `Shards`; they hold tokens 0 to N - 1 of the pack, without gaps, and this process
    those after them and the layers with a window. choice: what a method that chooses takes, "all":
    the best of all processes' tokens, which one context takes, in two exchanges a layer; "each": of
    each process its part, the best of its own, in one. method: `Full()`, `Hash()`,
    `TopK(index="flat")`, and with choice "each" `TopK()`. For contexts with
    `store=Disk(…, read_only=True)`, whose prompts are read exactly.
    """

    name: ClassVar[str] = "sharded"
    summary: ClassVar[str] = "tokens that other machines hold, too"

    exact_prompts: ClassVar[bool] = True

    shards: Shards
    method: Attend = Full()  # noqa: RUF009 - frozen, without fields
    choice: str = "all"

    def __post_init__(self) -> None:
        if self.choice not in CHOICES:
            raise AttendError(f"choice is {self.choice!r:.40}, expected {' or '.join(CHOICES)}")
        if (reason := unsupported(self.method, self.choice)) is not None:
            raise AttendError(
                f"shards do not serve {reason}: use {spelt('method')} full, hash, or topk with "
                f"{spelt('index')} flat or {spelt('shards_choice')} each"
            )

    @property
    def host_only(self) -> str:
        return spelt("shards")

    @property
    def selects(self) -> bool:  # type: ignore[override]
        """Whether the method chooses, and is told what."""
        return self.method.selects and self.choice == "all"

    def shortened(self) -> Attend:
        return self.method.shortened()

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundAttend:
        """See `Attend.open`. Raises `ShardError` for shards that are not there, or do not fit."""
        from .head.binding import open_sharded

        if not isinstance(store, DiskStore) or store.saves:
            raise AttendError(
                f"{called(self.method)} over shards continues after their pack, which does not "
                f"change: give {spelt('pack')} NAME (in Python, store=Disk(path, read_only=True))"
            )
        return open_sharded(self.shards, self.method, self.choice == "each", model, store, n_ctx)
