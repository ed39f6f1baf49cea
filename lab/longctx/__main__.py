"""`make longctx`: after 32,768 to 1,048,576 tokens, decoding and reading with a random 1B-shaped
Q4_0 model.

    python -m lab.longctx [--depths N,…] [--methods M,…] [--budget 1%] [--kv-type q8_0]

Every method runs over the same context in memory, of which --read tokens are read and the rest is
filled (see `kvarn bench`). Beside `full`, prompts are read exactly; beside a method whose index can
choose for prompts, sparsely: 512 tokens, and a question of 20 to its first token (both columns
follow one run that does not count; --no-prompts leaves them out, since 512 tokens read exactly
after a million take minutes). llama.cpp runs beside them, with K and V of the tokens it has read
repeated. Depths that do not fit in memory are left out, with the bytes they need. Refuses to
measure while other programs keep the CPU busy. Prints a markdown table; --json FILE also writes the
rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path

from kvarn.runtime.bench import Observer
from kvarn.runtime.loading.load import load
from kvarn.system.errors import KvarnError
from kvarn.system.files import check_target, write_file
from kvarn.system.values import Budget

from ..peers.model import kept_model
from .table import METHODS, Plan, Row, rows_at

HEAD = (
    "| depth | | t/s | ms/t | choosing | attending | of memory | read GB/s "
    "| prefill | 512 tokens, t/s | question of 20, s |"
)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.json is not None:
            check_target(options.json)
        plan = _plan(options)
        path = options.model or kept_model(options.folder, "q4_0")
        model = load(path, threads=options.threads)
        rows = []
        for depth in options.depths:
            for row in rows_at(model, depth, plan, _LineObserver()):
                print(row, file=sys.stderr, flush=True)
                rows.append(row)
        if options.json is not None:
            text = json.dumps([asdict(row) for row in rows], indent=2)
            write_file(options.json, (text + "\n").encode())
    except KvarnError as error:
        print(f"longctx: {error}", file=sys.stderr)
        return 1
    print(render(rows))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.longctx",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--depths", type=_numbers, default=[32_768, 131_072, 1_048_576])
    parser.add_argument("--methods", type=_methods, default=Plan.methods, help=", ".join(METHODS))
    parser.add_argument("--budget", default=Plan.budget)
    parser.add_argument("--kv-type", choices=("f16", "q8_0", "q4_0"), default=Plan.kv_type)
    parser.add_argument("--read", dest="n_read", type=int, default=Plan.n_read)
    parser.add_argument("--tokens", dest="n_gen", type=int, default=Plan.n_gen)
    parser.add_argument("--repetitions", type=int, default=Plan.repetitions)
    parser.add_argument("--no-prompts", dest="prompts", action="store_false")
    parser.add_argument("--threads", type=int, default=Plan.threads)
    parser.add_argument("-m", "--model", type=Path, help="another model")
    parser.add_argument("--folder", type=Path, help="where the model file is kept between runs")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE, too")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _methods(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in METHODS:
            known = ", ".join(METHODS)
            raise argparse.ArgumentTypeError(f"unknown method {name!r}, expected some of {known}")
    return names


def _plan(options: argparse.Namespace) -> Plan:
    Budget.parse(options.budget)
    plan = Plan(**{field.name: getattr(options, field.name) for field in fields(Plan)})
    if min(plan.n_read, plan.n_gen, plan.repetitions, plan.threads, *options.depths) < 1:
        raise KvarnError("every number is expected to be 1 or more")
    return plan


class _LineObserver(Observer):
    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def render(rows: list[Row]) -> str:
    """The rows as a markdown table; times in milliseconds a token."""
    lines = [HEAD, "|---:|---|---:|---:|---:|---:|---:|---:|---|---:|---:|"]
    for row in rows:
        speed = row.tokens_per_second
        cells = [
            f"{row.depth:,}",
            row.who,
            row.why if speed is None else f"{speed:.2f}",
            "" if speed is None else f"{1e3 / speed:.1f}",
            "" if row.index_ms is None else f"{row.index_ms:.1f}",
            "" if row.attention_ms is None else f"{row.attention_ms:.1f}",
            "" if row.of_memory is None else f"{row.of_memory:.0%}",
            "" if row.bandwidth is None else f"{row.bandwidth:.1f}",
            row.prefill,
            "" if row.read_per_second is None else f"{row.read_per_second:.1f}",
            "" if row.question_seconds is None else f"{row.question_seconds:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
