"""`make peers`: kvarn ÷ llama.cpp, alternating in one run, on random 1B-shaped models.

    python -m lab.peers [--types q8_0,q4_0,q4_k_m] [--depths 0,8192] [--folder DIR]

For each file, it measures start-up; for each depth, prefill of 512 tokens and decode of 64, kvarn
and llama.cpp in turn (with flash attention off and on; the better one counts); and the time of a
token whose kernels do nothing. Both read --read tokens of a depth and repeat their K and V. The
table has medians of the rounds, the ratio, the read bandwidth measured between the rounds, the
share of it that decode reaches, and peak memory (of kvarn also beyond file and KV cache). Refuses
to measure while other programs keep the CPU busy. One type in less than a minute, any of MIXES:

    python -m lab.peers --types q5_1 --prefill-only --layers 8 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from .compare import Row, compare_file
from .model import LLAMA_1B, MIXES, kept_model

HEAD = (
    "| file | test | depth | kvarn | llama.cpp | ratio | of memory | read GB/s | peak MB | beyond |"
)
CASES = {"prefill 512": (512, 0), "decode 64": (0, 64)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.peers", description=__doc__)
    parser.add_argument("--types", default="q8_0,q4_0,q4_k_m", help="file types, with commas")
    parser.add_argument("--layers", type=int, default=LLAMA_1B.n_layers, help="default 16")
    parser.add_argument("--experts", action="store_true", help="8B in experts, 1B for a token")
    parser.add_argument("--prefill-only", action="store_true", help="no start-up, no decode")
    parser.add_argument("--depths", default="0", help="tokens of context before, with commas")
    parser.add_argument(
        "--read", dest="n_read", type=int, default=1024, help="tokens of a depth to read for real"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case (default 5)")
    parser.add_argument("--threads", type=int, default=2, help="threads of both (default 2)")
    parser.add_argument("--kv-type", choices=("f16", "q8_0"), default="f16")
    parser.add_argument("--folder", type=Path, help="where model files are kept between runs")
    parser.add_argument("-o", "--output", choices=("md", "json"), default="md")
    options = parser.parse_args()
    depths = [int(depth) for depth in options.depths.split(",")]
    sizes = (options.n_read, options.rounds, options.threads, options.layers)
    if min(*sizes, *(d + 1 for d in depths)) < 1:
        parser.error("every number is expected to be 1 or more (a depth may be 0)")
    kinds = options.types.split(",")
    if unknown := [kind for kind in kinds if kind not in MIXES]:
        parser.error(f"no file type {unknown[0]!r}; there are {', '.join(MIXES)}")
    cases = {name: CASES[name] for name in CASES if CASES[name][0] or not options.prefill_only}
    rows: list[Row] = []
    for kind in kinds:
        path = kept_model(options.folder, kind, options.layers, options.experts)
        for row in compare_file(path, kind, cases, depths, options):
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    print(render(rows, options.output))
    return 0


def render(rows: list[Row], output: str) -> str:
    """The rows as a markdown table or as JSON."""
    if output == "json":
        return json.dumps([asdict(row) for row in rows], indent=2)
    lines = [HEAD, "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        theirs = "" if row.llama is None else f"{row.llama:.3g} {row.unit}"
        peaks = f"{row.kvarn_bytes / 1e6:.0f} / {row.llama_bytes / 1e6:.0f}"
        cells = [
            row.kind, row.test, str(row.depth), f"{row.kvarn:.3g} {row.unit}", theirs,
            "" if row.ratio is None else f"**{row.ratio:.2f}**",
            "" if row.of_memory is None else f"{row.of_memory:.0%}",
            "" if row.bandwidth is None else f"{row.bandwidth:.1f}",
            *([peaks, f"{row.kvarn_extra / 1e6:.0f}"] if row.kvarn_bytes else ["", ""]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
