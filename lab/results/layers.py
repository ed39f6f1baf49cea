"""The error of attention's output in each layer, of all methods after the same tokens read.

    python -m lab.results.layers --model MODEL.gguf --task needle --length 16384 \\
        --contexts 10 --questions 4 --tables 10x150,8x75 --text TEXTS --answers FILE

For each question, kvarn reads the context, the question and the true reply; at the tokens of the
reply, each layer is computed exactly, and beside that by MagicPIG. How many tokens that has read, m
in each KV head, is what the others may read: exact top-k, top-k with the means of the rest, and
draws by the true weights ("oracle"), m by all query heads of a KV head together. LSH without the
centre reads what it draws.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from kvarn.evals.quality import Arm
from kvarn.evals.quality.plan import Cell
from kvarn.evals.quality.reading import TokenSample
from kvarn.runtime.attend import MagicPig, TopK
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk

from .estimators import PlainTables, exact_top, oracle_sample, softmax, softmax_over
from .shadow import Matched, Shadow, Step, relative_error
from .study import Contexts, parser, studied, study

SINK, WINDOW = 4, 64
"""MagicPIG's, for all methods."""
MOST_STEPS = 8
"""Tokens of a reply that are looked at."""
SEED = 5
NEAR = 0.02
"""By which the share that `topk` reads may differ from MagicPIG's."""
TRIES = 4
"""Budgets that are tried for that."""


@dataclass
class Sums:
    """Of one arm in one layer: sums over steps of the share read, the share covered, the error."""

    steps: int = 0
    read: float = 0.0
    covered: float = 0.0
    error: float = 0.0

    @property
    def share(self) -> float:
        """The mean share that was read."""
        return self.read / self.steps

    def add(self, read: float, covered: float, error: float) -> None:
        self.steps += 1
        self.read += read
        self.covered += covered
        self.error += error


@dataclass
class Study:
    """What is measured of one context. sums: by layer and arm."""

    tables: str
    plain: bool
    sums: dict[tuple[int, str], Sums] = field(default_factory=lambda: defaultdict(Sums))
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    codes: dict[tuple[int, int], Any] = field(default_factory=dict)

    def magicpig(self, step: Step) -> None:
        """Note a step of MagicPIG, and of the estimators that read as much."""
        layer, n = step.layer.index, len(step.keys)
        m = max(1, round(step.read))
        config = step.layer.config
        group = len(step.q) // step.keys.shape[1]
        tops, draws, covered, read = [], [], [], []
        for j in range(step.keys.shape[1]):
            keys, values = step.keys[:, j], step.values[:, j]
            scores = step.q[j * group : (j + 1) * group] @ keys.T * config.attention_scale
            of_head = np.stack([softmax(one) for one in scores.astype(np.float32)])
            chosen = exact_top(of_head, m)
            read.append(float(chosen.mean()))
            for weights in of_head:
                tops.append(softmax_over(chosen, weights, values))
                draws.append(oracle_sample(weights, values, max(1, m // group), self.rng))
                covered.append(float(weights[chosen].sum()))
        share = step.read / n
        self._add(layer, f"magicpig {self.tables}", share, 0.0, step.error)
        top = np.array(tops, np.float32)
        self._add(
            layer, f"exact top-k, m of {self.tables}", float(np.mean(read)),
            float(np.mean(covered)),
            relative_error(top, step.exact),
        )  # fmt: skip
        drawn = relative_error(np.array(draws, np.float32), step.exact)
        self._add(layer, f"oracle, m draws of {self.tables}", share, 0.0, drawn)
        if self.plain:
            self._uncentred(step)

    def topk(self, name: str) -> Any:
        """What notes the steps of a `topk` method under a name."""
        return lambda step: self._add(
            step.layer.index, name, step.read / len(step.keys), 0.0, step.error
        )

    def _uncentred(self, step: Step) -> None:
        """The same tables over keys as they are."""
        bits, number = map(int, self.tables.split("x"))
        n, config = len(step.keys), step.layer.config
        group = len(step.q) // step.keys.shape[1]
        hashing = PlainTables(bits, number, step.q.shape[1], SEED)
        always = np.zeros(n, np.bool_)
        always[:SINK] = always[n - WINDOW :] = True
        outs, read = [], np.zeros((step.keys.shape[1], n), np.bool_)
        for head, q in enumerate(step.q):
            j = head // group
            keys, values = step.keys[:, j], step.values[:, j]
            held = self.codes.get((step.layer.index, j))
            first = 0 if held is None else max(0, min(len(held), n) - 512)
            newest = hashing.codes(keys[first:])
            codes = newest if held is None else np.concatenate([held[:first], newest])
            self.codes[step.layer.index, j] = codes
            scores = (keys @ q * config.attention_scale).astype(np.float32)
            out, of_head = hashing.estimate(q, keys, codes, scores, values, always)
            outs.append(out)
            read[j] |= of_head
        error = relative_error(np.array(outs, np.float32), step.exact)
        name = f"LSH {self.tables} without a centre"
        self._add(step.layer.index, name, float(read.mean()), 0.0, error)

    def _add(self, layer: int, arm: str, read: float, covered: float, error: float) -> None:
        self.sums[layer, arm].add(read, covered, error)


def measure(model: Model, read: TokenSample, tables: str, plain: bool, n_questions: int) -> Study:
    """All arms over one context."""
    found = Study(tables, plain)
    pig = MagicPig(tables=tables, dense_layers="none", sink=SINK, window=WINDOW)
    _watch(model, read, Shadow(pig, found.magicpig, [False]), n_questions)
    if found.sums:
        common = {"sink": SINK, "window": WINDOW, "tail": "means"}
        _match(model, read, found, common, n_questions)
        one = Shadow(TopK("1%", **common), found.topk("topk 1% + means"), [False])  # type: ignore[arg-type]
        _watch(model, read, one, n_questions)
    return found


def _match(
    model: Model, read: TokenSample, found: Study, common: Mapping[str, Any], n_questions: int
) -> None:
    """Note `topk`, its budget in each layer such that it reads as much as MagicPIG. Query heads
    that share one choose some tokens alike, so the budget that does it is found by trying."""
    name, pig = f"topk + means, m of {found.tables}", f"magicpig {found.tables}"
    wanted = {layer: sums.share for (layer, arm), sums in found.sums.items() if arm == pig}
    n = len(read.ids)
    always = (SINK + WINDOW) / n
    budgets = {layer: max(1.0, n * (share - always)) for layer, share in sorted(wanted.items())}
    for _ in range(TRIES):
        for layer in wanted:
            found.sums.pop((layer, name), None)
        mean = max(1, round(float(np.mean(list(budgets.values())))))
        by_layer = [budget / mean for budget in budgets.values()]
        method = Matched(mean, by_layer=by_layer, **common)
        _watch(model, read, Shadow(method, found.topk(name), [False]), n_questions)
        got = {layer: sums.share for (layer, arm), sums in found.sums.items() if arm == name}
        if all(abs(share / wanted[layer] - 1) <= NEAR for layer, share in got.items()):
            break
        for layer, share in got.items():
            ratio = max(wanted[layer] - always, 1 / n) / max(share - always, 1 / n)
            budgets[layer] = max(1.0, budgets[layer] * ratio)


def _watch(model: Model, read: TokenSample, shadow: Shadow, n_questions: int) -> None:
    """Read each question after the context, then its true reply, looking at that."""
    store = Disk(read.pack(model, Arm()), read_only=True)
    room = read.n_ctx + MOST_STEPS
    with model.context(room, shadow, store=store) as context:
        context.index()
        for number in range(min(n_questions, len(read.questions))):
            reply = model.tokenizer.encode(read.questions[number].reply, bos=False)
            shared = context.cut_to_shared(read.ids)
            context.prefill([*read.ids[shared:], *read.question_ids[number]])
            shadow.watching[0] = True
            for token in reply[:MOST_STEPS]:
                context.decode(token)
            shadow.watching[0] = False


@dataclass(frozen=True)
class Layers(Contexts):
    """The contexts, and the tables whose numbers of tokens all read."""

    tables: tuple[str, ...]

    name: ClassVar[str] = "layers"
    sources: ClassVar[tuple[str, ...]] = ("layers.py", "shadow.py", "estimators.py")

    def figures(self, read: TokenSample, cell: Cell, number: int) -> Iterator[dict[str, Any]]:
        read.build(self.model, Arm())
        for i, one in enumerate(self.tables):
            found = measure(self.model, read, one, plain=i == 0, n_questions=self.plan.n_questions)
            yield from _rows(cell, number, found)


def _rows(cell: Cell, number: int, found: Study) -> Iterator[dict[str, Any]]:
    for (layer, arm), sums in sorted(found.sums.items()):
        n = sums.steps
        yield {
            "task": cell.task, "length": cell.length, "context": number, "layer": layer,
            "arm": arm, "scores": [], "entropy": [], "read": [sums.share],
            "covered": [sums.covered / n or None], "error": [sums.error / n],
        }  # fmt: skip


def layers_of(o: argparse.Namespace) -> Layers:
    """What the options name."""
    return Layers(*studied(o), o.work, tuple(o.tables.split(",")))


def main() -> None:
    """Entry point of the module."""
    p = parser(__doc__)
    p.add_argument("--tables", default="10x150", help="KxL with commas; the first also uncentred")
    study(p.parse_args(), layers_of)


if __name__ == "__main__":
    main()
