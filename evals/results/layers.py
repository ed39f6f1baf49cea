"""The error of attention's output in each layer, of all methods after the same tokens read.

    python -m kvarn.evals.results.layers --model MODEL.gguf --task needle --length 16384 \\
        --contexts 10 --questions 4 --tables 10x150,8x75 --text TEXTS --answers FILE

For each question, kvarn reads the context, the question and the true reply; at the tokens of the
reply, each layer is computed exactly, and beside that by MagicPIG. How many tokens that has read, m
in each KV head, is what the others may read: exact top-k, top-k with the means of the rest, and m
draws by the true weights ("oracle"). LSH without the centre reads what it draws.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...jit.machine import physical_cores
from ...runtime.attend import MagicPig, TopK
from ...runtime.home import mode_in
from ...runtime.loading.load import load
from ...runtime.model import Model
from ...runtime.store import Disk
from ...system.children import helped
from ...system.files import write_file
from ...system.reading import MOST_TEXT, read_file
from ...system.terminal import say
from ..quality import Arm, Plan
from ..quality.folder import ContextFolder
from ..quality.plan import Cell
from ..quality.reading import Read, read_for
from ..tasks import Prose
from .estimators import PlainTables, exact_top, oracle_sample, softmax
from .plan import ROOM
from .shadow import Matched, Shadow, Step, relative_error

SINK, WINDOW = 4, 64
"""MagicPIG's, for all methods."""
MOST_STEPS = 8
"""Tokens of a reply that are looked at."""
SEED = 5


@dataclass
class Sums:
    """Of one arm in one layer: sums over steps of the share read, the share covered, the error."""

    steps: int = 0
    read: float = 0.0
    covered: float = 0.0
    error: float = 0.0

    def add(self, read: float, covered: float, error: float) -> None:
        self.steps += 1
        self.read += read
        self.covered += covered
        self.error += error


@dataclass
class Study:
    """What is measured of one context. sums: by layer and arm; tokens: by layer, those that
    MagicPIG read at each step."""

    tables: str
    plain: bool
    sums: dict[tuple[int, str], Sums] = field(default_factory=lambda: defaultdict(Sums))
    tokens: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    codes: dict[tuple[int, int], Any] = field(default_factory=dict)

    def magicpig(self, step: Step) -> None:
        """Note a step of MagicPIG, and of the estimators that read as much."""
        layer, n = step.layer.index, len(step.keys)
        self.tokens[layer].append(step.read)
        m = max(1, round(step.read))
        config = step.layer.config
        group = len(step.q) // step.keys.shape[1]
        tops, draws, covered = [], [], []
        for head, q in enumerate(step.q):
            keys, values = step.keys[:, head // group], step.values[:, head // group]
            weights = softmax((keys @ q * config.attention_scale).astype(np.float32))
            tops.append(exact_top(weights, values, m))
            draws.append(oracle_sample(weights, values, m, self.rng))
            covered.append(float(np.sort(weights)[-m:].sum()))
        share = step.read / n
        self._add(layer, f"magicpig {self.tables}", share, 0.0, step.error)
        top = np.array(tops, np.float32)
        self._add(
            layer, f"exact top-k, m of {self.tables}", m / n, float(np.mean(covered)),
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
        outs, read = [], 0
        for head, q in enumerate(step.q):
            j = head // group
            keys, values = step.keys[:, j], step.values[:, j]
            held = self.codes.get((step.layer.index, j))
            first = 0 if held is None else max(0, min(len(held), n) - 512)
            newest = hashing.codes(keys[first:])
            codes = newest if held is None else np.concatenate([held[:first], newest])
            self.codes[step.layer.index, j] = codes
            scores = (keys @ q * config.attention_scale).astype(np.float32)
            out, n_read = hashing.estimate(q, keys, codes, scores, values, always)
            outs.append(out)
            read += n_read
        error = relative_error(np.array(outs, np.float32), step.exact)
        name = f"LSH {self.tables} without a centre"
        self._add(step.layer.index, name, read / len(outs) / n, 0.0, error)

    def _add(self, layer: int, arm: str, read: float, covered: float, error: float) -> None:
        self.sums[layer, arm].add(read, covered, error)


def measure(model: Model, read: Read, tables: str, plain: bool, n_questions: int) -> Study:
    """All arms over one context."""
    study = Study(tables, plain)
    pig = MagicPig(tables=tables, dense_layers="none", sink=SINK, window=WINDOW)
    _watch(model, read, Shadow(pig, study.magicpig, [False]), n_questions)
    layers = sorted(study.tokens)
    if not layers:
        return study
    chosen = [max(1.0, float(np.mean(study.tokens[i])) - SINK - WINDOW) for i in layers]
    mean = max(1, round(float(np.mean(chosen))))
    common = {"sink": SINK, "window": WINDOW, "levels": 2, "tail": "means"}
    matched = Matched(mean, by_layer=[each / mean for each in chosen], **common)  # type: ignore[arg-type]
    one = TopK("1%", **common)  # type: ignore[arg-type]
    for name, method in ((f"topk + means, m of {tables}", matched), ("topk 1% + means", one)):
        _watch(model, read, Shadow(method, study.topk(name), [False]), n_questions)
    return study


def _watch(model: Model, read: Read, shadow: Shadow, n_questions: int) -> None:
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
class Contexts:
    """The contexts that are studied, each kept in its folder with the figures of it."""

    model: Model
    plan: Plan
    work: Path
    tables: tuple[str, ...]

    def cells(self, shared: bool = False) -> Iterator[dict[str, Any]]:
        """The figures of every context, layer by layer. shared: see `evaluate`."""
        if shared:
            self.take_free()
        for cell, number in self._all():
            folder = self._folder(cell, number)
            with folder.taken():
                yield from self._figures(folder, cell, number)

    def take_free(self) -> None:
        """Study the contexts that no other process is at work on."""
        for cell, number in self._all():
            folder = self._folder(cell, number)
            with folder.taken(wait=False) as is_free:
                if is_free:
                    self._figures(folder, cell, number)

    def _all(self) -> list[tuple[Cell, int]]:
        return [(cell, i) for cell in self.plan.cells() for i in range(self.plan.n_contexts)]

    def _folder(self, cell: Cell, number: int) -> ContextFolder:
        return ContextFolder(self.work / cell.key(self.plan, number, self.model))

    def _figures(self, folder: ContextFolder, cell: Cell, number: int) -> list[dict[str, Any]]:
        """Of one context; measured unless its folder holds them."""
        path = folder.path / f"layers-{self._key()}.json"
        if not path.exists():
            read = read_for(self.model, folder, self.plan, cell, number)
            read.build(self.model, Arm())
            rows: list[dict[str, Any]] = []
            for i, one in enumerate(self.tables):
                plain, n = i == 0, self.plan.n_questions
                rows += _rows(cell, number, measure(self.model, read, one, plain, n))
            write_file(path, json.dumps(rows).encode(), mode_in(folder.path))
        found: list[dict[str, Any]] = json.loads(read_file(path, MOST_TEXT))
        return found

    def _key(self) -> str:
        """A digest of what is measured, and how."""
        state = hashlib.blake2b(" ".join(self.tables).encode(), digest_size=6)
        for name in ("layers.py", "shadow.py", "estimators.py"):
            state.update((ROOM / name).read_bytes())
        return state.hexdigest()


def _rows(cell: Cell, number: int, study: Study) -> Iterator[dict[str, Any]]:
    for (layer, arm), sums in sorted(study.sums.items()):
        n = sums.steps
        yield {
            "task": cell.task, "length": cell.length, "context": number, "layer": layer,
            "arm": arm, "scores": [], "entropy": [], "read": [sums.read / n],
            "covered": [sums.covered / n or None], "error": [sums.error / n],
        }  # fmt: skip


def main() -> None:
    """Entry point of the module."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--model", type=Path, required=True)
    p.add_argument("--task", required=True, help="names with commas")
    p.add_argument("--length", required=True, help="numbers with commas")
    p.add_argument("--contexts", type=int, default=10)
    p.add_argument("--questions", type=int, default=4)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--tables", default="10x150", help="KxL with commas; the first also uncentred")
    p.add_argument("--text", type=Path, nargs="+", required=True)
    p.add_argument("--work", type=Path, default=Path("build/results"))
    p.add_argument("--answers", type=Path, required=True, help="JSON lines to write")
    p.add_argument("--processes", type=int, default=1, help="that share the contexts")
    o = p.parse_args()
    contexts = _contexts(o)
    with helped(o.processes - 1, _help, o, say):
        lines = [json.dumps(cell) + "\n" for cell in contexts.cells(shared=o.processes > 1)]
    write_file(o.answers, "".join(lines).encode())


def _contexts(o: argparse.Namespace) -> Contexts:
    texts = [path.read_text(encoding="utf-8") for path in o.text]
    plan = Plan(
        tuple(o.task.split(",")), tuple(map(int, o.length.split(","))), (Arm(),), Prose(texts),
        "layers", o.contexts, o.questions, o.seed,
    )  # fmt: skip
    model = load(o.model, threads=max(1, physical_cores() // o.processes))
    return Contexts(model, plan, o.work, tuple(o.tables.split(",")))


def _help(o: argparse.Namespace, say: Callable[[str], None]) -> None:
    _contexts(o).take_free()


if __name__ == "__main__":
    main()
