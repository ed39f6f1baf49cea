"""Loading the model of a command and opening its context, with the kernels for it compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..runtime.loading.devices import card_for
from ..runtime.loading.load import load
from ..runtime.pack_links import name_model
from ..runtime.rehearsal import rehearsals
from .terminal.compiling import FirstUse
from .terminal.notices import notice

if TYPE_CHECKING:
    from ..runtime.attend import Attend
    from ..runtime.context import Context
    from ..runtime.context.request import ContextRequest
    from ..runtime.keep import Keep
    from ..runtime.model import Model
    from ..runtime.prefill import Prefill
    from ..runtime.store.pack_info import PackHead
    from .options.model import ModelRequest


@dataclass(frozen=True)
class Needs:
    """What contexts of a command do, so that their kernels are compiled before they begin."""

    kv: tuple[str, str] = ("f16", "f16")
    attends: Sequence[Attend] = ()
    keeps: Sequence[Keep] = ()
    prefills: Sequence[Prefill] = ()


def load_model(source: ModelRequest, needs: Needs, pack: PackHead | None = None) -> Model:
    """The model, with kernels for `needs` compiled. pack: what the context begins with; if its
    model was moved, the pack finds it there from now on."""
    model = load_only(source, needs, pack)
    _compile(source, model, needs)
    return model


def load_only(source: ModelRequest, needs: Needs, pack: PackHead | None = None) -> Model:
    """The same, with no kernel compiled but those that loading takes, and with the first of them
    all for `needs`."""
    card_for(source.device)  # before a model is pulled, or kernels compiled
    path = source.file(pack)
    _listen(path, needs)
    model = load(
        path, threads=source.threads, notice=notice, device=source.device, kv_on=source.kv_on
    )
    if pack is not None:
        name_model(Path(pack.path), model)
    return model


@contextmanager
def opened(source: ModelRequest, model: Model, request: ContextRequest) -> Iterator[Context]:
    """The context that is asked for, once it is clear that it can be opened with its kernels
    compiled, and what was decided about it said."""
    with model.open(request) as context:
        for line in context.notices:
            notice(line)
        plan = context.plan
        needs = Needs(plan.store.types(), [plan.attend], [plan.keep], [plan.prefill])
        _compile(source, model, needs)
        yield context


def _compile(source: ModelRequest, model: Model, needs: Needs) -> None:
    """Compile what contexts on the CPU need, before they read anything."""
    if source.device == "cpu":
        _listen(model.path, needs).begin(model)


def _listen(path: Path, needs: Needs) -> FirstUse:
    """Tells of kernels that are compiled; before the first, compiles those of `needs`."""
    from ..jit.kernel_cache import on_compile

    first_use = FirstUse(rehearsals(path, needs.kv, needs.attends, needs.keeps, needs.prefills))
    on_compile(first_use)
    return first_use
