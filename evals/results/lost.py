"""How much of what answers attend to is gone from contexts that evict: HashEvict, table 3.

    python -m kvarn.evals.results.lost --model MODEL.gguf --task needle --length 4096 \\
        --contexts 10 --questions 5 --keep hashevict,l2norm --keep-budget 50% --text TEXTS \\
        --answers FILE

For each question, a context that keeps all reads the context, the question and the true reply; at
the tokens of the reply, the softmax of each head of each layer that sees everything tells what they
attend to. A context that evicts reads the same tokens as one prompt and decodes the same reply. Of
each head's softmax over all tokens, `covered` is the mass of the tokens that are held in its KV
head: 1 - covered is the attention loss of the paper.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...runtime.attend import Full, LayerView
from ...runtime.keep import KEEPS
from ..quality import Arm
from ..quality.asking import opened
from ..quality.plan import Cell
from ..quality.reading import Read
from .estimators import softmax
from .shadow import BoundShadow, Shadow, Step
from .study import Contexts, parser, studied, study

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...runtime.loading.model_info import ModelInfo
    from ...runtime.store import KVStore
    from .estimators import F32, F64

MOST_STEPS = 8
"""Tokens of a reply that are looked at."""


class Listening(Shadow):
    """`full`; `note` hears of each step of a layer that sees everything."""

    def open(self, model: ModelInfo, store: KVStore, n_ctx: int) -> BoundShadow:
        return _BoundListening(self, self.method.open(model, store, n_ctx))


class _BoundListening(BoundShadow):
    def __call__(self, layer: LayerView, q: F32, start: int, out: F32) -> None:
        self._full(layer, q, start, out)
        if self._shadow.watching[0] and layer.config.window is None:
            keys, values = self._stored(layer, start + 1)
            self._shadow.note(Step(layer, q[0], out[0], out[0], keys, values, 0.0))


Weights = dict[int, list["NDArray[np.float64]"]]
"""Of each layer, for each token of a reply: the softmax (H, n) over all tokens before it."""


def attended(model: Any, read: Read) -> list[Weights]:
    """What the true reply to each question attends to, where all tokens stay."""
    found: list[Weights] = []

    def note(step: Step) -> None:
        found[-1][step.layer.index].append(_weights(step))

    listening = Listening(Full(), note, [False])
    room = read.n_ctx + MOST_STEPS
    with model.context(room, listening) as context:
        for number, ids in enumerate(read.question_ids):
            shared = context.cut_to_shared(read.ids)
            context.prefill([*read.ids[shared:], *ids])
            found.append(defaultdict(list))
            listening.watching[0] = True
            for token in _reply(model, read, number):
                context.decode(token)
            listening.watching[0] = False
    return found


def _reply(model: Any, read: Read, number: int) -> list[int]:
    ids: list[int] = model.tokenizer.encode(read.questions[number].reply, bos=False)
    return ids[:MOST_STEPS]


def _weights(step: Step) -> F64:
    group = len(step.q) // step.keys.shape[1]
    scale = step.layer.config.attention_scale
    rows = [softmax(step.keys[:, h // group] @ q * scale) for h, q in enumerate(step.q)]
    return np.stack(rows)


def held(weights: F64, kept: NDArray[np.uint32]) -> float:
    """Mean over the heads of the mass (H, n) at the positions (J, m) of their KV head."""
    group = len(weights) // len(kept)
    return float(np.mean([row[kept[h // group]].sum() for h, row in enumerate(weights)]))


@dataclass(frozen=True)
class Lost(Contexts):
    """The contexts, and the keep methods with their budget."""

    keeps: tuple[str, ...]
    budget: str

    name: ClassVar[str] = "lost"
    sources: ClassVar[tuple[str, ...]] = ("lost.py", "shadow.py", "estimators.py")

    def figures(self, read: Read, cell: Cell, number: int) -> Iterator[dict[str, Any]]:
        read = replace(read, asked="inside")
        every = attended(self.model, read)
        for name in self.keeps:
            keeping: Any = KEEPS[name]
            arm = Arm("full", "", name, self.budget, keeping=keeping(self.budget))
            for layer, shares in sorted(self._shares(read, arm, every).items()):
                yield {
                    "task": cell.task, "length": cell.length, "context": number, "layer": layer,
                    "arm": str(arm), "scores": [], "entropy": [], "read": [], "error": [],
                    "covered": [float(np.mean(shares))],
                }  # fmt: skip

    def _shares(self, read: Read, arm: Arm, every: list[Weights]) -> dict[int, list[float]]:
        """Of each layer, for each token of all replies: the mass that is held."""
        found: dict[int, list[float]] = defaultdict(list)
        with opened(self.model, read, arm) as asker:
            for number, (ids, weights) in enumerate(zip(read.question_ids, every)):
                asker.pose(ids)
                for step, token in enumerate(_reply(self.model, read, number)):
                    asker.context.decode(token)
                    for layer, rows in weights.items():
                        found[layer].append(held(rows[step], asker.context.kept(layer)))
        return found


def lost_of(o: argparse.Namespace) -> Lost:
    """What the options name."""
    return Lost(*studied(o), o.work, tuple(o.keep.split(",")), o.keep_budget)


def main() -> None:
    """Entry point of the module."""
    p = parser(__doc__)
    p.add_argument("--keep", required=True, help="keep methods with commas")
    p.add_argument("--keep-budget", default="50%", help="of what is read, answers included")
    study(p.parse_args(), lost_of)


if __name__ == "__main__":
    main()
