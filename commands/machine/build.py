"""`kvarn build`: compile kernels ahead of their first use."""

from __future__ import annotations

import argparse
import time

from ...models.config.architectures import TEXT_ENCODERS
from ...ops.attention.layout import KV_TYPES
from ...runtime.embedding.rehearsal import TextRehearsal
from ...runtime.gguf import open_gguf
from ...runtime.rehearsal import Rehearsal, all_rehearsals, rehearsals
from ...system.errors import KvarnError
from ...system.terminal import show
from ..options.context import (
    add_attend_options,
    add_keep_options,
    add_kv_type_option,
    request_from,
)
from ..options.model import ModelRequest
from ..options.model_options import add_model_options
from ..terminal.compiling import compile_all, compile_missing
from ..terminal.interrupt import on_ctrl_c


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compile the kernels that a model needs, in as many processes as the CPU has cores, so "
        "that no command has to wait. What is compiled already is only loaded. Without options: "
        "all methods, with each type of KV cache; --kv-type, --method and --keep name some of them."
    )
    add_model_options(parser)
    add_kv_type_option(parser)
    add_keep_options(parser)
    add_attend_options(parser)


def run(options: argparse.Namespace) -> int:
    from ...jit import kernel_cache

    folder = kernel_cache.place()
    if folder is None:
        raise KvarnError("compiled kernels cannot be kept: `kvarn doctor` tells why")
    request, path = request_from(options), ModelRequest.of(options).file()
    rehearsed: list[Rehearsal] = []
    if request.attend.selects or request.keep.evicts(1 << 20):
        rehearsed = rehearsals(path, request.store.types(), [request.attend], [request.keep])
    elif options.kv_type or open_gguf(path).architecture not in TEXT_ENCODERS:
        kinds = [options.kv_type] if options.kv_type else [(name, name) for name in KV_TYPES]
        rehearsed = all_rehearsals(path, kinds)
    began = time.perf_counter()
    with on_ctrl_c(lambda: f"stopped: {folder} keeps what was compiled"):
        if rehearsed:
            compile_missing(rehearsed, show)
        compile_all(rehearsed or [TextRehearsal(path)], show)
    show(f"ready after {time.perf_counter() - began:.1f} s, in {folder}")
    return 0
