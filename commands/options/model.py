"""Options for loading a model and opening a context, shared by the commands that compute."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ...ops.attention.layout import KV_TYPES
from ...runtime.default_model import usual_model_path
from ...runtime.keep import KEEPS, Keep, KeepError, parse_budget
from ...runtime.load import load
from ...runtime.memory import available_bytes, human_bytes
from ...runtime.store import Disk, Ram
from ...system.errors import KvarnError
from ..notices import KERNELS, CompileNotice, notice
from .attend import add_attend_options, attend_from
from .methods import Axis
from .values import positive

if TYPE_CHECKING:
    from ...runtime.context import Context
    from ...runtime.model import Model

ROOM = 4096
"""Tokens that can follow a pack which fills the model's training length."""


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        metavar="FILE",
        type=Path,
        help="a GGUF file (default: the one converted or pulled last, or the small one of kvarn)",
    )
    group.add_argument(
        "-t",
        "--threads",
        metavar="N",
        type=positive,
        help="kernel threads (default: one per physical core)",
    )


def add_context_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds `--ctx` and `--kv-type`; the group, for more of the kind."""
    group = parser.add_argument_group("context")
    group.add_argument(
        "-c",
        "--ctx",
        metavar="N",
        type=positive,
        help="room for N tokens (default: the model's training length, or what fits in memory)",
    )
    add_kv_type_option(group)
    add_keep_options(group)
    add_attend_options(parser)
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


KEEP_AXIS: Axis[Keep] = Axis(
    "keep", "--keep", KEEPS, "all", prefix="keep-", checks={"budget": keep_budget}
)


def model_from(options: argparse.Namespace) -> Model:
    """The model that the options name; where they name none, says which it is."""
    from ...jit.kernel_cache import on_compile

    on_compile(CompileNotice(KERNELS))
    path = options.model if options.model is not None else usual_model_path(notice)
    return load(path, threads=options.threads, notice=notice)


def ram_from(options: argparse.Namespace) -> Ram:
    """A KV cache in memory of the type that the options name."""
    return Ram(*(options.kv_type or ()))


def context_from(
    options: argparse.Namespace, model: Model, disk: Disk | None = None, n_held: int = 0
) -> Context:
    """A context as large as asked, or as the model's training length and the memory allow.

    On `disk` where that is given; `n_held` is what it holds already.
    """
    keep, attend, limit = keep_from(options), attend_from(options), model.config.n_ctx_train
    if options.ctx is not None:
        n_ctx = options.ctx
        if n_ctx > limit and not keep.evicts(n_ctx):
            notice(f"--ctx {n_ctx} is more than the {limit} tokens {model.name} was trained on")
    elif keep.evicts(limit):
        n_ctx = limit
    elif disk is not None:
        # A pack may be longer than what the model was trained on: that was said when it was built.
        n_ctx = limit if n_held < limit else n_held + ROOM
    else:
        n_ctx = _fitting(model, ram_from(options))
    context = model.context(n_ctx, attend, keep, disk or ram_from(options))
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
