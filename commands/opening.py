"""Loading the model of a command and opening its context, with the kernels for it compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..runtime.draft import Draft
from ..runtime.loading.adapter_files import AdapterFile
from ..runtime.loading.devices import card_for
from ..runtime.loading.load import load
from ..runtime.packs.links import name_model
from ..runtime.rehearsal import rehearsals
from ..system.terminal import say
from .terminal.compiling import AheadCompiler

if TYPE_CHECKING:
    from ..runtime.attend import Attend
    from ..runtime.context import Context
    from ..runtime.context.planning.request import ContextRequest
    from ..runtime.draft.request import DraftRequest
    from ..runtime.keep import Keep
    from ..runtime.model import Model
    from ..runtime.prefill import Prefill
    from ..runtime.store.facts import PackHead
    from .options.model import ModelRequest


@dataclass(frozen=True)
class Workload:
    """What contexts of a command do: their kernels are compiled before they begin."""

    kv: tuple[str, str] = ("f16", "f16")
    attends: Sequence[Attend] = ()
    keeps: Sequence[Keep] = ()
    prefills: Sequence[Prefill] = ()

    @classmethod
    def of(cls, request: ContextRequest) -> Workload:
        """What a context does whatever its prompt."""
        return cls(request.store.types(), [request.attend], [request.keep])


def load_model(
    source: ModelRequest,
    work: Workload,
    pack: PackHead | None = None,
    *,
    compiles: bool = True,
    draft: DraftRequest | None = None,
) -> Model:
    """The model, with kernels for `work` compiled.

    draft: what is to guess for it; before it is loaded, a draft of another vocabulary is refused.

    pack: the pack that the context begins with. If its model was moved, the pack finds it from now
    on. compiles: False leaves the compiling to `open_context`, which knows more of the context.
    """
    card_for(source.device)  # refuses before a model is pulled, or kernels compiled
    path, lora = source.file(pack), source.adapters(pack)
    if draft is not None:
        draft.check(path)
    compiler = _listen(path, work, lora)
    model = load(
        path,
        threads=source.threads,
        notice=say,
        device=source.device,
        kv_on=source.kv_on,
        lora=lora,
    )
    if pack is not None:
        name_model(Path(pack.path), model)
    if compiles and source.device == "cpu":
        compiler.begin(model)
    return model


def load_draft(request: DraftRequest | None) -> Draft | None:
    """The draft that is asked for. A model is loaded, which computes on the CPU, and its kernels
    are compiled."""

    def compiled(path: Path) -> Model:
        compiler = _listen(path, Workload(), ())
        model = load(path, notice=say)
        compiler.begin(model)
        return model

    return None if request is None else request.open(compiled)


@contextmanager
def open_context(
    source: ModelRequest, model: Model, request: ContextRequest, n_prompt: int | None = None
) -> Iterator[Context]:
    """Open the context that is asked for, with its kernels compiled, and show its notices.

    n_prompt: at most so many tokens are read after those that it holds; None: as many as have room.
    """
    with model.open(request) as context:
        for line in context.notices:
            say(line)
        compile_for(source, model, context, n_prompt)
        yield context


def compile_for(
    source: ModelRequest, model: Model, context: Context, n_prompt: int | None = None
) -> None:
    """Compile the kernels that a context needs; n_prompt: see `open_context`."""
    plan, reach = context.plan, context.most_tokens
    if n_prompt is not None:
        reach = min(reach, len(context.tokens) + n_prompt)
    prefills = [] if plan.prefill.is_exact_within(reach) else [plan.prefill]
    work = Workload(plan.store.types(), [plan.attend], [plan.keep], prefills)
    if source.device == "cpu":
        lora = tuple(AdapterFile(Path(x.path), x.scale) for x in model.adapters)
        _listen(model.path, work, lora).begin(model)


def _listen(path: Path, work: Workload, lora: tuple[AdapterFile, ...]) -> AheadCompiler:
    """Before the first kernel that is missing, compiles all for `work`, and shows that it does."""
    from ..jit.kernel_cache import on_compile

    compiler = AheadCompiler(
        rehearsals(path, work.kv, work.attends, work.keeps, work.prefills, lora)
    )
    on_compile(compiler)
    return compiler
