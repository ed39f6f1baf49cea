"""How much of what answers attend to is gone from contexts that evict: HashEvict, table 3.

    python -m lab.results.lost --model MODEL.gguf --task needle --length 4096 \\
        --contexts 10 --questions 5 --keep hashevict,l2norm --keep-budget 50% --text TEXTS \\
        --answers FILE

For each question, a context that keeps all reads the context, the question and the true reply; at
the tokens of the reply, the softmax of each head of each layer that sees everything tells what they
attend to. A context that evicts reads the same tokens as one prompt and decodes the same reply. Of
each head's softmax over all tokens, `covered` is the mass of the tokens that are held in its KV
head: 1 - covered is the attention loss of the paper. `error` is ‖o - o_full‖ / ‖o_full‖ of the
output o of the softmax over the held ones alone. "exact" holds the tokens with the most mass, as
many as the budget, for each head and token anew: no method can hold more.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kvarn.evals.quality import Arm
from kvarn.evals.quality.asking import open_asker
from kvarn.evals.quality.plan import Cell
from kvarn.evals.quality.reading import TokenSample
from kvarn.ops.arrays import F32, F64
from kvarn.runtime.attend import Full, LayerView

from .estimators import softmax
from .shadow import BoundShadow, Shadow, Step, relative_error
from .study import Contexts, keeping_arm, parser, studied, study

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvarn.runtime.loading.model_info import ModelInfo
    from kvarn.runtime.store import KVStore


MOST_STEPS = 8
"""Tokens of a reply that are looked at."""
EXACT = "exact"


class ListeningShadow(Shadow):
    """`full`; `note` hears of each step of a layer that sees everything."""

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundShadow:
        return _BoundListeningShadow(self, self.method.open(model, store, n_ctx))


class _BoundListeningShadow(BoundShadow):
    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._full(layer, q, start, out)
        if self._shadow.watching[0] and layer.config.window is None:
            keys, values = self._stored(layer, start + 1)
            self._shadow.note(Step(layer, q[0], out[0], out[0], keys, values, 0.0))


@dataclass
class AttendedTokens:
    """What the tokens of a reply attend to in one layer, where all tokens stay.

    weights: for each of them, the softmax (H, n) over all tokens before it; exact: the outputs
    (H, E); values: of all tokens (n, J, E).
    """

    weights: list[F64] = field(default_factory=list)
    exact: list[F32] = field(default_factory=list)
    values: F32 = field(default_factory=lambda: np.zeros((0, 1, 1), np.float32))

    def add(self, step: Step) -> None:
        self.weights.append(_weights(step))
        self.exact.append(step.exact.copy())
        self.values = step.values

    def left(self, step: int, kept: NDArray[np.integer[Any]]) -> tuple[float, float]:
        """Mean over the heads of the mass at the positions (J, m) or (H, m), and the error of the
        softmax over these alone."""
        weights, heads = self.weights[step], self.values.shape[1]
        masses, outs = [], []
        for h, row in enumerate(weights):
            here = kept[h * len(kept) // len(weights)]
            mass = float(row[here].sum())
            values = self.values[here, h * heads // len(weights)]
            masses.append(mass)
            outs.append(row[here] @ values / max(mass, 1e-300))
        error = relative_error(np.array(outs, np.float32), self.exact[step])
        return float(np.mean(masses)), error

    def most(self, step: int, n: int) -> NDArray[np.intp]:
        """The positions (H, n) with the most mass in each head."""
        return np.argpartition(self.weights[step], -n, 1)[:, -n:]


Reply = dict[int, AttendedTokens]
"""By layer, of those that see everything."""


def attended(model: Any, read: TokenSample) -> list[Reply]:
    """What the true reply to each question attends to."""
    found: list[Reply] = []

    def note(step: Step) -> None:
        found[-1][step.layer.index].add(step)

    listening = ListeningShadow(Full(), note, [False])
    room = read.n_ctx + MOST_STEPS
    with model.context(room, listening) as context:
        for number, ids in enumerate(read.question_ids):
            shared = context.cut_to_shared(read.ids)
            context.prefill([*read.ids[shared:], *ids])
            found.append(defaultdict(AttendedTokens))
            listening.watching[0] = True
            for token in _reply(model, read, number):
                context.decode(token)
            listening.watching[0] = False
    return found


def _reply(model: Any, read: TokenSample, number: int) -> list[int]:
    ids: list[int] = model.tokenizer.encode(read.questions[number].reply, bos=False)
    return ids[:MOST_STEPS]


def _weights(step: Step) -> F64:
    group = len(step.q) // step.keys.shape[1]
    scale = step.layer.config.attention_scale
    rows = [softmax(step.keys[:, h // group] @ q * scale) for h, q in enumerate(step.q)]
    return np.stack(rows)


@dataclass(frozen=True)
class LossStudy(Contexts):
    """The contexts, and the keep methods with their budget."""

    keeps: tuple[str, ...]
    budget: str

    name: ClassVar[str] = "lost"
    sources: ClassVar[tuple[str, ...]] = ("lost.py", "shadow.py", "estimators.py")

    def figures(self, read: TokenSample, cell: Cell, number: int) -> Iterator[dict[str, Any]]:
        read = replace(read, asked="inside")
        every = attended(self.model, read)
        arms: list[Arm | None] = [keeping_arm(name, self.budget) for name in self.keeps]
        for arm in (*arms, None):
            left = self._best(read, every) if arm is None else self._left(read, arm, every)
            for layer, pairs in sorted(left.items()):
                covered, error = np.mean(pairs, 0).tolist()
                yield {
                    "task": cell.task, "length": cell.length, "context": number, "layer": layer,
                    "arm": f"{EXACT} {self.budget}" if arm is None else str(arm),
                    "scores": [], "entropy": [], "read": [], "error": [error],
                    "covered": [covered],
                }  # fmt: skip

    def _left(self, read: TokenSample, arm: Arm, every: list[Reply]) -> Left:
        """What is held of it where the arm's method evicts."""
        found: Left = defaultdict(list)
        with open_asker(self.model, read, arm) as asker:
            for number, (ids, reply) in enumerate(zip(read.question_ids, every)):
                asker.read_question(ids)
                for step, token in enumerate(_reply(self.model, read, number)):
                    asker.context.decode(token)
                    for layer, seen in reply.items():
                        found[layer].append(seen.left(step, asker.context.kept_positions(layer)))
        return found

    def _best(self, read: TokenSample, every: list[Reply]) -> Left:
        """What the budget could hold of it."""
        keeping: Any = keeping_arm(self.keeps[0], self.budget).keeping
        n, found = keeping.n_slots(read.n_ctx), defaultdict(list)
        for reply in every:
            for layer, seen in reply.items():
                for step in range(len(seen.weights)):
                    found[layer].append(seen.left(step, seen.most(step, n)))
        return found


Left = dict[int, list[tuple[float, float]]]
"""Of each layer, for each token of all replies: covered, error."""


def lost_of(o: argparse.Namespace) -> LossStudy:
    """What the options name."""
    return LossStudy(*studied(o), o.work, tuple(o.keep.split(",")), o.keep_budget)


def main() -> None:
    """Entry point of the module."""
    p = parser(__doc__)
    p.add_argument("--keep", required=True, help="keep methods with commas, as in `kvarn eval`")
    p.add_argument("--keep-budget", default="50%", help="of what is read, answers included")
    study(p.parse_args(), lost_of)


if __name__ == "__main__":
    main()
