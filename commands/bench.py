"""`kvarn bench`: tokens per second of prefill and decode, with llama-bench's options."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .model_options import add_kv_type_option, add_model_options, model_from, positive
from .store_options import add_kv_option, kv_folder


def add(subparsers: Any) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench",
        help="measure prefill and decode speed",
        description="Time reading -p tokens and generating -n tokens, each after -d tokens of "
        "context, -r times; lists are separated by commas.",
    )
    parser.add_argument(
        "-p",
        "--n-prompt",
        metavar="N,…",
        type=counts,
        default=[512],
        help="prompt lengths (default 512; 0: none)",
    )
    parser.add_argument(
        "-n",
        "--n-gen",
        metavar="N,…",
        type=counts,
        default=[128],
        help="generated lengths (default 128; 0: none)",
    )
    parser.add_argument(
        "-d",
        "--n-depth",
        metavar="N,…",
        type=counts,
        default=[0],
        help="tokens of context before each measurement (default 0)",
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
    add_model_options(parser)
    add_kv_type_option(parser)
    add_kv_option(parser, "in a pack that is removed after")


def counts(text: str) -> list[int]:
    """An argparse type: "0,512" → [0, 512]."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"expected whole numbers with commas, found {text!r}")
    return [int(part) for part in parts]


def run(options: argparse.Namespace) -> int:
    from ..runtime.bench import Case, render, run_case

    model = model_from(options)
    cases = [
        Case(n_prompt, n_gen, depth, *(options.kv_type or ()))
        for depth in options.n_depth
        for n_prompt, n_gen in [(p, 0) for p in options.n_prompt] + [(0, n) for n in options.n_gen]
        if n_prompt or n_gen
    ]
    results = []
    for number, case in enumerate(cases, 1):
        print(f"kvarn: [{number}/{len(cases)}] {case}", file=sys.stderr)
        results.append(run_case(model, case, options.repetitions, kv_folder(options)))
    print(render(results, options.output))
    return 0
