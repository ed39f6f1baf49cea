"""What methods that evict lose of the next tokens of real texts.

    python -m lab.evicting -m MODEL -f TEXT… --out FILE [--ctx 8192] [--decode 300]
        [--keep streaming,snapkv,…] [--keep-budget 20%,50%]

The figures of `kvarn perplexity -f TEXT… --ctx N --decode T --keep …`. That reads each text anew
for each method; here methods that evict after a prompt share one reading, which keeps all queries,
and each evicts from a copy of what it left. Appends a line of JSON for each text to FILE, and goes
on where it was interrupted. Prints the table over all texts in FILE.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kvarn.commands.measuring.perplexity import table
from kvarn.commands.options.arms import budgets_of, keeps_from, words
from kvarn.evals.prediction import MethodLosses, passages_of
from kvarn.evals.prediction.losses import TextLosses, log_softmax
from kvarn.ops.arrays import F64
from kvarn.runtime.keep.scored import NaCl, ScoredKeep, ScoredSlots
from kvarn.runtime.loading.load import load
from kvarn.system.errors import KvarnError
from kvarn.system.reading import MOST_TEXT, read_text
from kvarn.system.terminal import say, show

if TYPE_CHECKING:
    from kvarn.evals.prediction import Passage
    from kvarn.runtime.attend import LayerView
    from kvarn.runtime.context import Context
    from kvarn.runtime.keep import Keep
    from kvarn.runtime.keep.slots import SlotParts
    from kvarn.runtime.model import Model

KEEPS = (
    "streaming,hashevict,nacl,nacl:settings=code,h2o,tova,snapkv,l2norm,l2norm:sinks=4:recent=10,"
    "random"
)


@dataclass(frozen=True)
class WholePrompt(NaCl):
    """Keeps all queries of a prompt. layers: the slots of each layer without a window."""

    layers: list[ScoredSlots] = field(default_factory=list, repr=False, compare=False)

    def open_layer(self, view: LayerView, parts: SlotParts) -> ScoredSlots:
        self.layers.append(super().open_layer(view, parts))
        return self.layers[-1]


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    keeps = {
        f"{name} {share}".strip(): keep
        for name, share, keep in keeps_from(options.keep, options.keep_budget)
    }
    try:
        model = load(options.model)
        texts = {str(file): read_text(file, MOST_TEXT).decode() for file in options.files}
        with model.silenced():
            for passage in passages_of(model, texts, options.ctx, options.decode):
                known = _known(options.out)
                if Path(passage.name).name not in known:
                    losses = measured(model, passage, keeps)
                    with options.out.open("a") as file:
                        file.write(_line(passage, losses))
                    say(f"{passage.name}: {options.decode} tokens predicted by {len(keeps)}")
    except (KvarnError, OSError) as error:
        say(f"evicting: {error}")
        return 1
    show(table(_results(options.out)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.evicting",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("-f", "--file", dest="files", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--decode", type=int, default=300)
    parser.add_argument("--keep", type=words, default=words(KEEPS))
    parser.add_argument("--keep-budget", type=budgets_of, default=["20%", "50%"])
    return parser


def measured(
    model: Model, passage: Passage, keeps: Mapping[str, Keep]
) -> dict[str, tuple[TextLosses, float]]:
    """Of each method what it predicts of a passage, and the share of the tokens it kept."""
    with _read_whole(model, passage) as whole:
        # A budget that is never full is full attention.
        full = list(_rows(whole(None), passage))
        losses = {}
        for name, keep in keeps.items():
            if isinstance(keep, ScoredKeep):
                losses[name] = _losses(whole(keep), passage, full)
                continue
            with model.context(len(passage.read), keep=keep) as context:
                context.prefill(passage.read)
                losses[name] = _losses(context, passage, full)
    return losses


@contextmanager
def _read_whole(model: Model, passage: Passage) -> Iterator[Callable[[ScoredKeep | None], Context]]:
    """Gives a context that has read the passage, and is about to evict from it by a method."""
    n, reading = len(passage.read), WholePrompt(len(passage.read) - 1, proxies="100%")
    with model.context(n, keep=reading) as context:
        context.prefill(passage.read)
        mark = context.mark()

        def evicting(keep: ScoredKeep | None) -> Context:
            context.return_to(mark)
            for slots in reading.layers:
                slots.keep = keep or reading
                slots.budget = keep.n_slots(n) if keep else 2 * n
            return context

        yield evicting


def _losses(context: Context, passage: Passage, full: list[F64]) -> tuple[TextLosses, float]:
    losses = TextLosses()
    for row, best, following in zip(_rows(context, passage), full, passage.following[1:]):
        losses.add(best, row, following)
    kept = context.stats.kept
    return losses, kept.n_kept / len(context.tokens) if kept else 1.0


def _rows(context: Context, passage: Passage) -> Iterator[F64]:
    for token in passage.following[:-1]:
        yield log_softmax(context.decode(token))


def _line(passage: Passage, losses: Mapping[str, tuple[TextLosses, float]]) -> str:
    methods = {
        name: {"kept": kept, "nats": text.nats, "kl": text.kl, "agrees": text.agrees}
        for name, (text, kept) in losses.items()
    }
    return json.dumps({"text": Path(passage.name).name, "methods": methods}) + "\n"


def _known(path: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Text → method → what was measured, as the file says."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["text"]: line["methods"] for line in map(json.loads, lines)}


def _results(path: Path) -> list[MethodLosses]:
    results: dict[str, MethodLosses] = {}
    for methods in _known(path).values():
        for name, one in methods.items():
            result = results.setdefault(name, MethodLosses(name))
            result.texts.append(TextLosses(one["nats"], one["kl"], [*map(bool, one["agrees"])]))
            result.read = one["kept"]  # type: ignore[assignment]  # the same for all texts
    return list(results.values())


if __name__ == "__main__":
    sys.exit(main())
