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
    from ..runtime.packs import PackInfo
    from ..runtime.prefill import Prefill
    from .options.model import ModelRequest


@dataclass(frozen=True)
class Needs:
    """What contexts of a command do, so that their kernels are compiled before they begin."""

    kv: tuple[str, str] = ("f16", "f16")
    attends: Sequence[Attend] = ()
    keeps: Sequence[Keep] = ()
    prefills: Sequence[Prefill] = ()


def load_model(request: ModelRequest, needs: Needs, pack: PackInfo | None = None) -> Model:
    """The model, with kernels for `needs` compiled. pack: what the context begins with; if its
    model was moved, the pack finds it there from now on."""
    model = load_only(request, needs, pack)
    _compile(request, model, needs)
    return model


def load_only(request: ModelRequest, needs: Needs, pack: PackInfo | None = None) -> Model:
    """The same, with nothing compiled but what loading takes, and then all of `needs`."""
    card_for(request.device)  # before a model is pulled, or kernels compiled
    path = request.file(pack)
    _listen(path, needs)
    model = load(
        path, threads=request.threads, notice=notice, device=request.device, kv_on=request.kv_on
    )
    if pack is not None:
        name_model(Path(pack.path), model)
    return model


@contextmanager
def opened(request: ModelRequest, model: Model, asked: ContextRequest) -> Iterator[Context]:
    """The context that is asked for, once it is clear that it can be opened with its kernels
    compiled, and what was decided about it said."""
    with model.open(asked) as context:
        for line in context.notices:
            notice(line)
        plan = context.plan
        needs = Needs(plan.store.types(), [plan.attend], [plan.keep], [plan.prefill])
        _compile(request, model, needs)
        yield context


def _compile(request: ModelRequest, model: Model, needs: Needs) -> None:
    """Compile what contexts on the CPU need, before they read anything."""
    if request.device == "cpu":
        _listen(model.path, needs).begin(model)


def _listen(path: Path, needs: Needs) -> FirstUse:
    """Tells of kernels that are compiled; before the first, compiles those of `needs`."""
    from ..jit.kernel_cache import on_compile

    first_use = FirstUse(rehearsals(path, needs.kv, needs.attends, needs.keeps, needs.prefills))
    on_compile(first_use)
    return first_use
