"""How many tokens the contexts of a server may hold, and whether there is memory for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....ops.cpu import CPU
from ....system.errors import KvarnError
from ...context.planning.plan import plan_of
from ...memory import available_bytes
from ...store import Ram

if TYPE_CHECKING:
    from ....models.config import ModelConfig
    from ...context.planning.request import ContextRequest
    from ...model import Model
    from ..protocol import Start


def fitting_size(model: Model, request: ContextRequest, parallel: int) -> int:
    """The tokens of each context where none are asked for: the training length, or what fits."""
    limit = model.config.n_ctx_train
    if request.keep.evicts(limit):
        return limit
    fits = request.store.tokens_in(model.config, available_bytes() // parallel)
    if fits is None or fits >= limit:
        return limit
    if fits < 1:
        raise KvarnError(
            f"no memory for {parallel} contexts: close other programs, use a smaller model or "
            "--parallel"
        )
    return fits


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
