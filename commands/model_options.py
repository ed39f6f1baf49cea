"""Options for loading a model and opening a context, shared by the commands that compute."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..ops.errors import KvarnError
from .attend_options import add_attend_options, attend_from

if TYPE_CHECKING:
    from ..runtime.context import Context
    from ..runtime.model import Model

KV_TYPES = ("f16", "q8_0", "q4_0")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        metavar="FILE",
        type=Path,
        help="a GGUF file (default: the small model that ships with kvarn)",
    )
    group.add_argument(
        "-t",
        "--threads",
        metavar="N",
        type=positive,
        help="kernel threads (default: one per physical core)",
    )


def add_context_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("context")
    group.add_argument(
        "-c",
        "--ctx",
        metavar="N",
        type=positive,
        help="room for N tokens (default: the model's training length, or what fits in memory)",
    )
    add_kv_type_option(group)
    add_attend_options(parser)


def add_kv_type_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--kv-type",
        metavar="T",
        type=kv_type,
        default=("f16", "f16"),
        help=f"type of the KV cache: {', '.join(KV_TYPES)} (default f16), or K/V "
        "apart as in q8_0/q4_0",
    )


def positive(text: str) -> int:
    """An argparse type: a whole number from 1 on."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, found {text!r}")
    return int(text)


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


def notice(line: str) -> None:
    """Tell the user one thing, on stderr."""
    print(f"kvarn: {line}", file=sys.stderr)


def model_from(options: argparse.Namespace) -> Model:
    """The model that the options name; says so when it is the default one."""
    from ..ops.cache import on_compile
    from ..runtime.load import load

    on_compile(_CompileNotice())
    model = load(options.model, threads=options.threads, notice=notice)
    if options.model is None:
        notice(f"no -m FILE given: using the default model {model.name}")
    return model


def context_from(options: argparse.Namespace, model: Model) -> Context:
    """A context as large as asked, or as the model's training length and the memory allow."""
    from ..runtime.memory import available_bytes, human_bytes
    from ..runtime.store import Ram

    attend = attend_from(options)
    k, v = options.kv_type
    ram, limit = Ram(k, v), model.config.n_ctx_train
    if options.ctx is not None:
        if options.ctx > limit:
            notice(
                f"--ctx {options.ctx} is more than the {limit} tokens {model.name} was trained on"
            )
        return _told(model.context(options.ctx, attend, store=ram))
    fits = ram.tokens_in(model.config, available_bytes())
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
    return _told(model.context(min(fits, limit), attend, store=ram))


def _told(context: Context) -> Context:
    """The context, after its notices have been told."""
    for line in context.notices:
        notice(line)
    return context


class _CompileNotice:
    """Says once that kernels are being compiled: the first run takes longer."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, kernel: str) -> None:
        if not self._said:
            self._said = True
            notice("compiling kernels (first use on this machine; `make build` does it ahead) …")
