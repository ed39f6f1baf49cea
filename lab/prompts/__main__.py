"""What sparse prefill reads of a text, beside choices that rows share, at equal tokens read.

    python -m lab.prompts -f TEXT [-m MODEL] [-n 16384] [--k 512] [--from 8192] [--blocks 8]

Reads the first -n tokens of the text exactly. For blocks of 128 rows, evenly spaced from --from on,
it computes in each layer without a window what each choice reads of the softmax, and how far the
output is off. `choices` says what they are. Prints a markdown table, errors layer by layer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from kvarn.runtime.loading.load import load
from kvarn.runtime.prefill import CHUNK, SparsePrefill
from kvarn.system.errors import KvarnError
from kvarn.system.reading import MOST_TEXT, read_text
from kvarn.system.terminal import say, show

from .choices import CHOICES, ChoiceFigures, judge
from .watch import Block, watch


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        prefill = SparsePrefill(k=options.k, from_=options.from_, rerank=options.rerank)
        show(table(_judged(options, prefill)))
    except (KvarnError, OSError) as error:
        say(f"prompts: {error}")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.prompts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-f", "--file", type=Path, required=True, help="a UTF-8 text")
    parser.add_argument("-m", "--model", type=Path, help="default: the default model")
    parser.add_argument("-n", "--tokens", type=int, default=16_384)
    parser.add_argument("--k", type=int, default=SparsePrefill.k)
    parser.add_argument("--rerank", type=int, help="as --prefill-rerank")
    parser.add_argument("--from", dest="from_", type=int, default=SparsePrefill.from_)
    parser.add_argument("--blocks", type=int, default=8)
    return parser


def _judged(
    options: argparse.Namespace, prefill: SparsePrefill
) -> dict[int, dict[str, ChoiceFigures]]:
    """For each layer the means over its blocks of rows."""
    model = load(options.model)
    text, tokenizer = read_text(options.file, MOST_TEXT), model.tokenizer
    ids = tokenizer.encode(text, bos=tokenizer.add_bos, special=False)
    if len(ids) < options.tokens:
        raise KvarnError(
            f"{options.file} has {len(ids):,} tokens, fewer than {options.tokens:,}: give a longer "
            "text or a smaller -n"
        )
    first, last = -(-options.from_ // CHUNK), options.tokens // CHUNK - 1
    if not 0 <= first <= last or options.blocks < 1:
        raise KvarnError(
            f"no chunk lies between token {options.from_:,} and {options.tokens:,}, or no block of "
            "rows was asked for"
        )
    places = np.linspace(first, last, min(options.blocks, last - first + 1)).astype(int)
    found: dict[int, list[dict[str, ChoiceFigures]]] = {}

    def see(block: Block) -> None:
        found.setdefault(block.layer.index, []).append(judge(block))

    watch(model, ids[: options.tokens], prefill, [CHUNK * int(i) for i in places], see)
    if not found:
        raise KvarnError(f"no row chooses: k is {prefill.k} of fewer tokens; use a smaller --k")
    return {
        layer: {name: ChoiceFigures(*np.mean([one[name] for one in rows], 0)) for name in CHOICES}
        for layer, rows in sorted(found.items())
    }


def table(judged: dict[int, dict[str, ChoiceFigures]]) -> str:
    """A row for each choice: means over layers, then the error of each layer."""
    layers = list(judged)
    heads = ["tokens read", "covered", "output error", *(f"layer {layer}" for layer in layers)]
    lines = [f"| choice | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for name, what in CHOICES.items():
        rows = [judged[layer][name] for layer in layers]
        mean = ChoiceFigures(*np.mean(rows, 0))
        errors = " | ".join(f"{one.error:.3f}" for one in rows)
        lines.append(
            f"| {what} | {mean.n_tokens:.0f} | {mean.covered:.1%} | {mean.error:.3f} | {errors} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
