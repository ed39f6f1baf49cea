"""Options for opening a context, shared by the commands that do."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from ...ops.attention.layout import KV_TYPES
from ...runtime.memory import available_bytes, human_bytes
from ...runtime.store import Disk, Ram
from ...system.errors import KvarnError
from ..terminal.notices import notice
from .attend import add_attend_options, attend_from
from .keep import add_keep_options, keep_from
from .prefill import add_prefill_options, prefill_from, prefill_of_question
from .values import calling, count

if TYPE_CHECKING:
    from ...runtime.attend import Attend
    from ...runtime.context import Context
    from ...runtime.model import Model

ROOM = 4096
"""Tokens that can follow a pack which fills the model's training length."""


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


def add_kv_type_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--kv-type",
        metavar="T",
        type=kv_type,
        help=f"type of the KV cache: {', '.join(KV_TYPES)} (default f16, or what a pack has), or "
        "K/V apart as in q8_0/q4_0",
    )
    for i, part in enumerate("kv"):
        parser.add_argument(
            f"-ct{part}",
            f"--cache-type-{part}",
            dest="kv_type",
            action=calling(partial(_store_one_type, i)),
            choices=KV_TYPES,
            help=argparse.SUPPRESS,
        )


def _store_one_type(i: int, namespace: argparse.Namespace, name: str) -> None:
    """llama.cpp's options for K (0) and V (1) one by one: the other stays f16, as there."""
    pair = list(namespace.kv_type or ("f16", "f16"))
    pair[i] = name
    namespace.kv_type = tuple(pair)


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
        n_ctx = room_after(n_held, limit)
    else:
        n_ctx = _fitting(model, ram_from(options), attend)
    prefill = prefill_from(options) or prefill_of_question(model, attend, keep, n_ctx, disk)
    context = model.context(n_ctx, attend, keep, disk or ram_from(options), prefill)
    for line in context.notices:
        notice(line)
    return context


def room_after(n_held: int, limit: int) -> int:
    """The size of a context that goes on from a pack, where no option says it.

    A pack may be longer than what the model was trained on: that was said when it was built.
    """
    return limit if n_held < limit else n_held + ROOM


def _fitting(model: Model, ram: Ram, attend: Attend) -> int:
    """The model's training length, or what fits in memory, which is then said."""
    limit, fits = model.config.n_ctx_train, ram.tokens_in(model.config, available_bytes())
    if model.kv_on == "gpu" and not attend.host_only:
        # Where nothing fits, the context says what was needed.
        fits = model.most_tokens(attend, store=ram) or limit
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
