"""`kvarn bench`: tokens per second of prefill and decode, with llama-bench's options."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...runtime.prefill import Exact
from ...runtime.store import Disk, Ram
from ...system.errors import WrongUsage
from ...system.terminal import show
from ..opening import Workload, load_model
from ..options.context import (
    add_attend_options,
    add_keep_options,
    add_kv_option,
    add_kv_type_option,
    add_prefill_options,
    request_from,
)
from ..options.files import check_recording
from ..options.model import ModelRequest
from ..options.model_options import add_model_options
from ..options.values import counts, positive
from ..terminal.progress import terminal


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Time reading -p tokens and generating -n tokens, each after -d tokens of "
        "context, -r times. Lists are separated by commas. Only the first --fill tokens of a "
        "depth are read. The rest is filled with their K and V, repeated with noise, which takes "
        "seconds for 100,000 tokens of a small model and minutes for a million. Timed work is the "
        "same as after reading. With --kv DIR, generation is also timed cold, with no K and V in "
        "memory at the start. If --keep evicts, all of a depth is read, and each repetition "
        "continues where the last one ended."
    )
    for short, name, default, help in (
        ("-p", "--n-prompt", 512, "prompt lengths (default 512; 0: none)"),
        ("-n", "--n-gen", 128, "generated lengths (default 128; 0: none)"),
        ("-d", "--n-depth", 0, "tokens of context before each measurement (default 0)"),
    ):
        parser.add_argument(short, name, metavar="N,…", type=counts, default=[default], help=help)
    parser.add_argument(
        "--fill",
        metavar="N",
        type=positive,
        help="read the first N tokens (default 4096) of deeper contexts and fill the rest",
    )
    parser.add_argument(
        "-r", "--repetitions", metavar="N", type=positive, default=5, help="repetitions (default 5)"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("md", "json", "csv"),
        default="md",
        help="output format (default md)",
    )
    add_model_options(parser, with_device=True)
    add_kv_type_option(parser)
    add_keep_options(parser)
    add_kv_option(parser, "in a pack that is removed afterwards")
    add_prefill_options(parser)
    group = add_attend_options(parser)
    group.add_argument(
        "--record-selections",
        metavar="FILE",
        type=Path,
        help="write which tokens were read to FILE (needs one -d, one -n and -p 0)",
    )


def run(options: argparse.Namespace) -> int:
    from ...runtime.bench import Setting, render, run_depth
    from ...runtime.bench.cases import READ

    source, request = ModelRequest.of(options), request_from(options)
    kv, attend = Ram(*(options.kv_type or ())).types(), request.attend
    prefill = request.prefill or Exact()
    check_recording(options.record_selections, attend, source.path)
    setting = Setting(
        kv[0],
        kv[1],
        (attend,),
        Path(request.store.path) if isinstance(request.store, Disk) else None,
        n_read=options.fill or READ,
        repetitions=options.repetitions,
        record=options.record_selections,
        keep=request.keep,
        prefill=prefill,
    )
    sizes = [(n, 0) for n in options.n_prompt if n] + [(0, n) for n in options.n_gen if n]
    if not sizes:
        raise WrongUsage("nothing to measure: -p and -n are 0")
    if setting.record is not None and (len(options.n_depth) > 1 or len(sizes) > 1):
        raise WrongUsage("--record-selections takes one measurement: one -d, one -n and -p 0")
    model = load_model(source, Workload(kv, [request.attend], [request.keep], [prefill]))
    observer = terminal()
    results = [
        result
        for depth in options.n_depth
        for result in run_depth(model, depth, sizes, setting, observer)
    ]
    show(render(results, options.output))
    return 0
