"""Decides what a request leaves open, in one place for all front ends."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ....ops.cpu import CPU
from ....system.spelling import spelt
from ....system.values import LARGEST
from ...engine import on_engine
from ...memory import available_bytes, human_bytes
from ...methods import called
from ...prefill import Exact, SparsePrefill, for_questions, recorded
from ...store import StoreError
from .placement import KVPlanner

if TYPE_CHECKING:
    from ....ops.device import Device
    from ...attend import Attend
    from ...keep import Keep
    from ...model import Model
    from ...prefill import Prefill
    from ...store import Store
    from .placement import Placement
    from .request import ContextRequest

ROOM = 4096
"""Tokens that can follow a pack which fills the model's training length."""


@dataclass(frozen=True)
class ContextPlan:
    """All that a context is, before it is opened.

    device: what computes. n_ctx: its size. store: where K and V are saved, or in memory; placement:
    the same on the device that has them. room: tokens that can follow those that the store holds.
    notices: lines about what was decided, for its user.
    """

    device: Device
    n_ctx: int
    attend: Attend
    keep: Keep
    prefill: Prefill
    store: Store
    placement: Placement
    room: int
    notices: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The choices as text and numbers, for JSON."""
        return {
            "device": self.device.name,
            "ctx": self.n_ctx,
            "room": self.room,
            "method": called(self.attend),
            "keep": called(self.keep),
            "prefill": called(self.prefill),
            "store": called(self.store),
            "kv_type": "/".join(self.store.types()),
            "kv_on": "host" if self.placement.device is CPU else "gpu",
        }


def plan_of(model: Model, request: ContextRequest) -> ContextPlan:
    """The context that is asked for; what the request leaves open follows from the model and the
    machine.

    Raises `StoreError` where memory has no room for any, where K and V cannot be where they are
    asked to be, and for a pack that cannot be gone on from; `PrefillError` if prompts cannot be
    read as asked.
    """
    attend, keep, head = request.attend, request.keep, request.store.head()
    n_saved, kv_on = 0 if head is None else head.n_tokens, request.kv_on or model.kv_on
    n_ctx, sized = _context_size(model, request, n_saved, kv_on)
    prefill, line = _prefill(model, request, n_ctx)
    prefill = prefill.resolved(model.info)
    prefill.check(attend, keep, n_ctx)
    store = request.store.for_prefill(prefill.facts(model.info))
    planner = KVPlanner(model, replace(request, store=store, prefill=prefill))
    placement = on_engine(planner.place, n_ctx, kv_on)
    unfinished = ""
    if head is not None and store.follows_pack and not head.complete:
        unfinished = f"pack {head.path} is not finished: {head.n_tokens:,} of {head.goal:,} tokens"
    most = LARGEST if keep.evicts(n_ctx) else n_ctx
    return ContextPlan(
        model.transformer.device,
        n_ctx,
        attend,
        keep,
        prefill,
        store,
        placement,
        most - n_saved,
        tuple(filter(None, (unfinished, sized, line))),
    )


def training_notice(model: Model, option: str, n_tokens: int) -> str:
    """A line where `option` asks for more tokens than the model was trained on, with any method;
    else ""."""
    if n_tokens <= (limit := model.config.n_ctx_train):
        return ""
    return f"{option} {n_tokens:,} is more than the {limit:,} tokens {model.name} was trained on"


def _context_size(
    model: Model, request: ContextRequest, n_saved: int, kv_on: str
) -> tuple[int, str]:
    """How many tokens there is room for, and a line about it, or ""."""
    keep, limit = request.keep, model.config.n_ctx_train
    if request.n_ctx is not None:
        n_ctx = request.n_ctx or limit
        return n_ctx, training_notice(model, spelt("ctx"), n_ctx)
    if keep.evicts(limit):
        return limit, ""
    fits = request.store.tokens_in(model.config, available_bytes())
    if fits is None:
        # A pack may be longer than what the model was trained on: that was said when it was built.
        return (limit if n_saved < limit else n_saved + ROOM), ""
    if kv_on == "gpu" and not request.attend.host_only:
        # Where nothing fits, the context says what was needed.
        fits = on_engine(KVPlanner(model, request).most_tokens, limit) or limit
    if fits < 1:
        raise StoreError(
            f"no memory for a context: {human_bytes(available_bytes())} is available; "
            "close other programs or use a smaller model"
        )
    if fits >= limit:
        return limit, ""
    return fits, (
        f"memory has room for {fits:,} of {limit:,} tokens of context; "
        f"{spelt('kv_type')} q8_0 halves the need"
    )


def question_prefill(model: Model, request: ContextRequest, n_ctx: int) -> Prefill:
    """How a question about what was read before is read, where its user does not say it: exactly
    where a GPU has K and V, else as `prefill.for_questions` says."""
    planner, kv_on = KVPlanner(model, request), request.kv_on or model.kv_on
    if kv_on == "gpu" or on_engine(planner.place, n_ctx, kv_on).device is not CPU:
        return Exact()
    return for_questions(request.attend, request.keep, n_ctx)


def _prefill(model: Model, request: ContextRequest, n_ctx: int) -> tuple[Prefill, str]:
    """How prompts are read, and a line about it, or "".

    A question that follows a pack is read in memory, or into a new pack, as `question_prefill`
    says. What a pack holds already says how others in it are read.
    """
    store = request.store
    if (asked := request.prefill) is not None:
        prefill = asked.following() if store.follows_pack else asked
        line = f"{spelt('prefill')} {asked.name}: what follows a pack is read {prefill.name}"
        return prefill, "" if prefill == asked else line
    if not store.follows_pack:
        return recorded(store.recorded_prefill()), ""
    prefill = question_prefill(model, request, n_ctx)
    if not isinstance(prefill, SparsePrefill) or n_ctx <= prefill.from_:
        return prefill, ""
    return prefill, (
        f"questions are read like generated tokens, sparsely (k {prefill.k}, after the first "
        f"{prefill.from_:,} tokens): {spelt('prefill')} exact reads all"
    )
