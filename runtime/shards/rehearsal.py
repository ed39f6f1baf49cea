"""Rehearsing what shards and their head compute, in one process: see `Context.rehearse`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ops.attention.layout import SEGMENT
from ..attend import Attend
from ..attend.base import LayerView
from ..loading.model_info import ModelInfo
from ..store.host import HostStore
from .answers import Answers
from .frames import Message, Shape
from .greeting import ShardFacts
from .head.binding import bind, index_of
from .links import Link, Links
from .method import CHOICES, unsupported

_MOST_ROWS = 4
"""Of queries that are read together: more use the same kernels."""


class _LocalLink(Link):
    """A shard in this process."""

    def __init__(self, answers: Answers) -> None:
        self.address, self.facts, self._answers = "here", answers.facts, answers

    def ask(self, question: Message) -> None:
        self._answer = self._answers.answer(question)

    def answer(self, *shapes: Shape) -> Message:
        return self._answer

    def close(self) -> None:
        pass


class _LocalLinks(Links):
    """One such shard."""

    def __init__(self, answers: Answers) -> None:
        self._links, self.stop = [_LocalLink(answers)], answers.facts.stop


def rehearse(
    method: Attend, model: ModelInfo, store: HostStore[Any], layers: Sequence[LayerView], n: int
) -> None:
    """Attend to n tokens, more than a segment, as if a shard had the first segment; do nothing for
    methods that shards do not serve. Runs on the engine's thread."""
    choices = [choice for choice in CHOICES if unsupported(method, choice) is None]
    if not choices or not model.config.one_geometry:
        return
    whole = [layer for layer in layers if layer.config.window is None]
    facts = ShardFacts("", "", "", 0, SEGMENT, tuple(store.columns))
    answers = Answers(store, facts, frozenset(layer.index for layer in whole), n)
    index, each = index_of(method, model, store), choices[0] == "each"
    attend = bind(_LocalLinks(answers), method, index, each, model, store, n)
    attend.build(list(layers), n)
    shape = _MOST_ROWS, model.config.n_heads, model.config.head_dim
    q, out = np.ones(shape, np.float32), np.empty(shape, np.float32)
    for layer in whole:
        attend(layer, q[:1], n - 1, out[:1])
        for rows in range(1, _MOST_ROWS + 1):
            attend.attend_prompt(layer, q[:rows], n - rows, out[:rows])
