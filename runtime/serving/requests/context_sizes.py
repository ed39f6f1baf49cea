"""How many tokens the contexts of a server may hold, and whether there is memory for them."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from ....ops.cpu import CPU
from ....system.errors import KvarnError
from ...context.planning.plan import plan_of
from ...draft import DraftModel
from ...memory import available_bytes
from ...store import Ram
from ...store.ram.factory import SPARE

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ...context.planning.request import ContextRequest
    from ...draft import Draft
    from ...model import Model
    from ..protocol import Start


def fitting_size(
    model: Model, request: ContextRequest, parallel: int, draft: Draft | None = None
) -> int:
    """The tokens of each context where none are asked for: the training length, or what fits, with
    a context of the draft beside each where a model guesses."""
    limit, room = model.config.n_ctx_train, available_bytes() // parallel
    guesses = draft if isinstance(draft, DraftModel) else None

    def is_too_long(n_ctx: int) -> bool:
        left = float(room)
        if guesses is not None:
            beside = Ram().empty(guesses.model.config).bytes_for(guesses.size_for(n_ctx))
            left -= beside / (1 - SPARE)
        if request.keep.evicts(limit):
            return left < 0
        fits = request.store.tokens_in(model.config, max(0, int(left)))
        return fits is not None and fits < n_ctx

    if fits := bisect_left(range(1, limit + 1), True, key=is_too_long):
        return fits
    drafts = "" if guesses is None else ", each with one of the draft"
    raise KvarnError(
        f"no memory for {parallel} contexts{drafts}: close other programs, use a smaller model or "
        "--parallel"
    )


def notices_of(model: Model, request: ContextRequest, start: Start) -> tuple[str, ...]:
    """What there is to say of the size that is asked for. Raises what `Model.open` raises."""
    plan = plan_of(model, request)
    if plan.placement.device is CPU:
        check_memory(model.config, request, start)
    return plan.notices


def check_memory(config: ModelConfig, request: ContextRequest, start: Start) -> None:
    """Raises `StoreError` where neither memory nor the disk that the library may take has room for
    a context of `start.n_ctx` tokens."""
    if isinstance(request.store, Ram) and not request.keep.evicts(start.n_ctx):
        request.store.check(config, start.n_ctx, start.cache_bytes)
