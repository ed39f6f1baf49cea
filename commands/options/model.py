"""Options for loading a model and opening a context, shared by the commands that compute."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...ops.attention.layout import KV_TYPES
from ...runtime.keep import KEEPS, Keep, KeepError, parse_budget
from ...runtime.loading.default_model import usual_model_path
from ...runtime.loading.load import load
from ...runtime.memory import available_bytes, human_bytes
from ...runtime.prefill import Prefill, for_questions
from ...runtime.rehearsal import rehearsals
from ...runtime.store import Disk, Ram
from ...system.errors import KvarnError
from ...system.text import one_line, shown
from ..terminal.compiling import FirstUse
from ..terminal.notices import notice
from .attend import add_attend_options, attend_from
from .hub import hub_model
from .methods import Axis
from .prefill import add_prefill_options, prefill_from, prefill_of_question
from .values import count, file_path, positive

if TYPE_CHECKING:
    from ...runtime.attend import Attend
    from ...runtime.context import Context
    from ...runtime.model import Model

ROOM = 4096
"""Tokens that can follow a pack which fills the model's training length."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Adds the model in its three forms (MODEL, `-m`, `-hf`) and what computes it."""
    group = parser.add_argument_group("model")
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=model_word,
        action=_ModelWord,
        help="a GGUF file (default: the one converted or pulled last, or the small one of kvarn)",
    )
    which.add_argument("-m", "--model", metavar="FILE", type=Path, help="the same")
    which.add_argument(
        "-hf",
        "-hfr",
        "--hf-repo",
        dest="hf",
        metavar="USER/REPO[:QUANT]",
        help="a GGUF file of the Hugging Face hub, pulled if need be "
        "(default QUANT: the largest that suits this machine)",
    )
    group.add_argument(
        "-t",
        "--threads",
        metavar="N",
        type=positive,
        help="kernel threads (default: one per physical core)",
    )
    # What llama.cpp's users write by habit, where it asks for what kvarn does anyway.
    group.add_argument(
        "-ngl", "--gpu-layers", "--n-gpu-layers", type=_no_gpu, help=argparse.SUPPRESS
    )
    group.add_argument(
        "-fa", "--flash-attn", nargs="?", type=_flash_attention, help=argparse.SUPPRESS
    )


class _ModelWord(argparse.Action):
    """Where the word is missing, what `-m` says stays."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if values is not None:
            namespace.model = values


def model_word(text: str) -> Path:
    """An argparse type: a model file among the words, which may be another word by mistake."""
    path = file_path(text)
    if path.exists() or path.suffix == ".gguf":
        return path
    mend = "give a GGUF file, -hf USER/REPO, or put a text with spaces in quotes"
    if text.count("/") == 1:
        mend = f"for a model of the Hugging Face hub, use -hf {one_line(text, 64)}"
    raise argparse.ArgumentTypeError(f"there is no file {shown(text)}: {mend}")


def _no_gpu(text: str) -> str:
    if text != "0":
        raise argparse.ArgumentTypeError("kvarn computes on the CPU: omit it, or give 0")
    return text


def _flash_attention(text: str) -> str:
    if text in ("on", "auto", "1"):
        return text
    words = "kvarn always computes attention this way: omit it"
    if text in ("off", "0"):
        raise argparse.ArgumentTypeError(words)
    raise argparse.ArgumentTypeError(f"expected on or auto, found {shown(text)}; {words}")


def add_context_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds `--ctx`, `--kv-type` and the methods' options; the group, for more of the kind."""
    group = parser.add_argument_group("context")
    group.add_argument(
        "-c",
        "--ctx",
        "--ctx-size",
        metavar="N",
        type=count,
        help="room for N tokens, as 8192, 128K or 1M (default: the model's training length, or "
        "what fits in memory; 0: the training length)",
    )
    add_kv_type_option(group)
    add_keep_options(group)
    add_attend_options(parser)
    add_prefill_options(parser)
    return group


def add_keep_options(group: argparse._ActionsContainer) -> None:
    """Adds `--keep` and what the methods know."""
    KEEP_AXIS.add(group, "which tokens stay in the KV cache")


def add_kv_type_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--kv-type",
        metavar="T",
        type=kv_type,
        help=f"type of the KV cache: {', '.join(KV_TYPES)} (default f16, or what a pack has), or "
        "K/V apart as in q8_0/q4_0",
    )
    for flag, part in (("-ctk", "k"), ("-ctv", "v")):
        parser.add_argument(
            flag,
            f"--cache-type-{part}",
            dest="kv_type",
            action=_OneKVType,
            choices=KV_TYPES,
            help=argparse.SUPPRESS,
        )


class _OneKVType(argparse.Action):
    """llama.cpp's options for K and V one by one: the other stays f16, as there."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        k, v = namespace.kv_type or ("f16", "f16")
        is_k = "--cache-type-k" in self.option_strings
        namespace.kv_type = (values, v) if is_k else (k, values)


def kv_type(text: str) -> tuple[str, str]:
    """An argparse type: "q8_0" → ("q8_0", "q8_0"), "q8_0/q4_0" → ("q8_0", "q4_0")."""
    k, _, v = text.partition("/")
    pair = k, v or k
    for name in pair:
        if name not in KV_TYPES:
            raise argparse.ArgumentTypeError(
                f"unknown type {name!r}, expected one of {', '.join(KV_TYPES)}"
            )
    return pair


def keep_budget(text: str) -> str:
    """An argparse type: a number of tokens from 1 on, or a share up to "100%"."""
    try:
        parse_budget(text)
    except KeepError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def keep_method(text: str) -> str:
    """An argparse type: the name of a method; in llama.cpp, a number stands there."""
    if text.lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(
            f"found {shown(text)}, expected {', '.join(KEEPS)}: `--keep streaming` always keeps "
            "the first 4 tokens"
        )
    return text


KEEP_AXIS: Axis[Keep] = Axis(
    "keep",
    "--keep",
    KEEPS,
    "all",
    prefix="keep-",
    checks={"budget": keep_budget},
    named_by=keep_method,
)


def model_from(
    options: argparse.Namespace, kv: tuple[str, str] | None = None, attends: Sequence[Attend] = ()
) -> Model:
    """The model that the options name; where they name none, says which it is.

    kv, attends: what its contexts will have where that is not in `--kv-type` and `--method`, so
    that all kernels can be compiled at once.
    """
    from ...jit.kernel_cache import on_compile

    path = model_path(options)
    types = getattr(options, "kv_type", None) or kv or ("f16", "f16")
    one = isinstance(getattr(options, "method", None), str)
    methods = [attend_from(options)] if one else attends
    keeps = [keep_from(options)] if isinstance(getattr(options, "keep", None), str) else []
    on_compile(
        FirstUse(partial(rehearsals, path, types, methods, keeps, _prefills(options, methods)))
    )
    return load(path, threads=options.threads, notice=notice)


def _prefills(options: argparse.Namespace, attends: Sequence[Attend]) -> list[Prefill]:
    """How prompts may be read: as the options say, or as questions about a pack are."""
    if not hasattr(options, "prefill"):
        return []
    named = prefill_from(options)
    if named is not None or getattr(options, "pack", None) is None:
        return [named] if named else []
    return [for_questions(attend, keep_from(options), ROOM) for attend in attends]


def model_path(options: argparse.Namespace) -> Path:
    """The file of the model that the options name, which is pulled if need be."""
    if options.hf is not None:
        options.model = hub_model(options.hf)
    path: Path | None = options.model
    if path is None:
        return usual_model_path(notice)
    if not path.exists():
        raise KvarnError(f"no such file: {path}; `kvarn ls` lists the models on this machine")
    return path


def names_model(options: argparse.Namespace) -> bool:
    """Whether the options name a model."""
    return options.model is not None or options.hf is not None


def ram_from(options: argparse.Namespace) -> Ram:
    """A KV cache in memory of the type that the options name."""
    return Ram(*(options.kv_type or ()))


def check_methods(options: argparse.Namespace) -> None:
    """Refuse options of other methods than those named, before a model is loaded."""
    keep_from(options)
    attend_from(options)
    prefill_from(options)


def context_from(
    options: argparse.Namespace, model: Model, disk: Disk | None = None, n_held: int = 0
) -> Context:
    """A context as large as asked, or as the model's training length and the memory allow.

    On `disk` where that is given; `n_held` is what it holds already.
    """
    keep, attend, limit = keep_from(options), attend_from(options), model.config.n_ctx_train
    if options.ctx is not None:
        n_ctx = options.ctx or limit
        if n_ctx > limit and not keep.evicts(n_ctx):
            notice(f"--ctx {n_ctx} is more than the {limit} tokens {model.name} was trained on")
    elif keep.evicts(limit):
        n_ctx = limit
    elif disk is not None:
        # A pack may be longer than what the model was trained on: that was said when it was built.
        n_ctx = limit if n_held < limit else n_held + ROOM
    else:
        n_ctx = _fitting(model, ram_from(options))
    prefill = prefill_from(options) or prefill_of_question(attend, keep, n_ctx, disk)
    context = model.context(n_ctx, attend, keep, disk or ram_from(options), prefill)
    for line in context.notices:
        notice(line)
    return context


def _fitting(model: Model, ram: Ram) -> int:
    """The model's training length, or what fits in memory, which is then said."""
    limit, fits = model.config.n_ctx_train, ram.tokens_in(model.config, available_bytes())
    if fits < 1:
        raise KvarnError(
            f"no memory for a context: {human_bytes(available_bytes())} are available; "
            "close other programs or use a smaller model"
        )
    if fits < limit:
        notice(
            f"memory has room for {fits} of {limit} tokens of context; "
            "--kv-type q8_0 halves the need"
        )
    return min(fits, limit)


def keep_from(options: argparse.Namespace) -> Keep:
    """The keep method that the options name."""
    return KEEP_AXIS.chosen(options)
