"""What choosing among many packs takes, the first stage of `kvarn ask --packs`.

    python -m lab.asking FOLDER [--packs 200] [--characters 60500] [--questions 5] [--text NOVEL]

Makes the packs that FOLDER lacks, with kvarn's own model: each has facts of its own between the
sentences of a novel, or made-up ones; if interrupted, the same command goes on. Then asks for facts
of single packs. Prints a markdown table: seconds of counting words and of all, the median of the
questions after a first one, which warms caches; and how often the right pack came first.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter

import kvarn
from kvarn.evals.tasks import TASKS, Plain, Prose
from kvarn.evals.tasks.sample import Sample
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.packs.ranking import rank_packs, word_scores
from kvarn.runtime.packs.texts import Text, build_packs
from kvarn.runtime.store import Disk
from kvarn.system.errors import KvarnError
from kvarn.system.terminal import say, show


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    model, paths = kvarn.load(), [options.folder / f"{n:03}" for n in range(options.packs)]
    texts: dict[str | Path, Text] = {
        path: partial(_text, options, n) for n, path in enumerate(paths)
    }
    n_tokens = 0
    for done, outcome in enumerate(build_packs(model, texts), 1):
        if isinstance(outcome.pack, KvarnError):
            raise outcome.pack
        n_tokens += outcome.pack.n_tokens
        say(f"{done} of {len(paths)} packs: {outcome.pack.n_tokens:,} tokens")
    packs = [ContextRequest(store=Disk(path, read_only=True)) for path in paths]
    words, whole, n_right = [], [], 0
    for i in range(options.questions + 1):
        n = i * 37 % len(paths)
        question = _sample(options, n).questions[0].text
        began = perf_counter()
        word_scores(question, paths, model.tokenizer)
        words.append(perf_counter() - began)
        best = rank_packs(model, packs, question)[0]
        whole.append(perf_counter() - began - words[-1])
        n_right += i > 0 and Path(best.pack) == paths[n]
    show("| packs | tokens, mean | words, s | all, s | right |")
    show("|---:|---:|---:|---:|---:|")
    seconds = " | ".join(f"{median(times[1:]):.2f}" for times in (words, whole))
    right = f"{n_right} of {options.questions}"
    show(f"| {len(paths)} | {n_tokens // len(paths):,} | {seconds} | {right} |")
    return 0


def _sample(options: argparse.Namespace, n: int) -> Sample:
    """The text of a pack and questions about it: the same in every run."""
    filler = Plain() if options.text is None else Prose([options.text.read_text("utf-8")])
    return TASKS["needle"](Random(f"asking {n}"), options.characters, 3, filler)


def _text(options: argparse.Namespace, n: int) -> str:
    return _sample(options, n).context


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.asking", description=(__doc__ or "").partition("\n")[0]
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="FOLDER", help="of the packs")
    add("--packs", type=int, default=200, metavar="N")
    add("--characters", type=int, default=60_500, metavar="N", help="of each text: 16K tokens")
    add("--questions", type=int, default=5, metavar="N")
    add("--text", type=Path, metavar="NOVEL", help="default: made-up sentences")
    return parser


if __name__ == "__main__":
    sys.exit(main())
