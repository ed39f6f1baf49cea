"""`kvarn quantize`: a GGUF model with its matrices in other types."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.engine import on_engine
from ...runtime.memory import human_bytes
from ...system.terminal import say
from ..notices import CompilingNotice, tell_of_dropped_encoders
from ..options.model_options import add_threads_option
from ..options.values import WEIGHT_TYPES
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import byte_bar

if TYPE_CHECKING:
    from ...convert.quantize.files import Report


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write IN.gguf (for a split file: any of its shards) to OUT.gguf with its matrices in "
        "other types, chosen as llama.cpp chooses them."
    )
    parser.add_argument("source", metavar="IN.gguf", type=Path, help="the model to read")
    parser.add_argument("target", metavar="OUT.gguf", type=Path, help="the file to write")
    parser.add_argument(
        "--type",
        metavar="T",
        required=True,
        help=f"type of the matrices: {WEIGHT_TYPES}",
    )
    parser.add_argument(
        "--imatrix",
        metavar="FILE",
        type=Path,
        help="encode columns with large inputs more exactly: a file from `kvarn imatrix` or "
        "llama.cpp",
    )
    parser.add_argument(
        "--allow-requantize",
        action="store_true",
        help="also encode matrices that are quantised already; errors add up",
    )
    add_threads_option(parser)


def run(options: argparse.Namespace) -> int:
    from ...convert.quantize.files import quantise_file
    from ...convert.quantize.imatrix import read_imatrix
    from ...convert.quantize.mixes import mix_of
    from ...jit import threads
    from ...jit.kernel_cache import on_compile

    on_compile(CompilingNotice("encoders"))
    mix = mix_of(options.type)
    imatrix = (options.imatrix, read_imatrix(options.imatrix)) if options.imatrix else None
    if options.threads is not None:
        on_engine(threads.set_threads, options.threads)
    stopped = on_ctrl_c(lambda: f"stopped: {options.target} was not written")
    with stopped, byte_bar("quantizing") as progress:
        report = quantise_file(
            options.source, options.target, mix, imatrix, options.allow_requantize, progress
        )
    tell_of_dropped_encoders(options.source, report)
    _report(options.target, mix.name, report)
    return 0


def _report(target: Path, mix_name: str, report: Report) -> None:
    types = ", ".join(f"{n} {name}" for name, n in report.types.most_common())
    bits = 8 * report.n_tensor_bytes / report.n_parameters
    say(f"{target}: {human_bytes(report.n_bytes)}, {bits:.2f} bits per weight ({types})")
    if report.n_odd:
        say(
            f"{report.n_odd} matrices have other types: the blocks of {mix_name} do not divide "
            "their rows"
        )
    if report.unweighted:
        more = f" and {len(report.unweighted) - 3} more" if len(report.unweighted) > 3 else ""
        names = ", ".join(report.unweighted[:3])
        say(f"the imatrix has no entry for {names}{more}: encoded without")
