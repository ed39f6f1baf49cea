"""What sets the models of this folder apart: sizes, tokens, learning rates and lengths of rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .texts.rows import MIXED, SINGLE, Stage


@dataclass(frozen=True)
class Recipe:
    """How one model is made.

    shape: what differs from MiniConfig's defaults. goals: numbers of tokens at which the learning
    rate has fallen to 0; it rises again for the next. lr: of the matrices (Muon); lr_embd: of
    embeddings and norms (AdamW). Lengths grow from stage to stage: a global layer without positions
    reads far only if it was trained on long rows, and a layer with rope reads no further than the
    rows it was trained on. grown: it starts from the shipped kvarn-mini (`grow.py`) instead of from
    random weights with a circuit (`start.py`).
    """

    goals: tuple[float, ...]
    stages: tuple[Stage, ...]
    shape: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 0.02
    lr_embd: float = 6e-3
    grown: bool = False


RECIPES = {
    "cohere2": Recipe(
        (10e6, 13e6),
        (
            Stage(0.05, 384, 16, 0.6, 0.3, SINGLE),
            Stage(0.23, 384, 16, 0.08, 0.78, SINGLE),
            Stage(0.17, 384, 16, 0.04, 0.8, MIXED),
            Stage(0.26, 1536, 4, 0.04, 0.75, MIXED),
            Stage(0.20, 6144, 2, 0.0, 0.75, MIXED),
            Stage(0.09, 16384, 2, 0.0, 0.8, MIXED),
        ),
    ),
    "gqa": Recipe(
        (0.85e6,),
        (
            Stage(0.32, 1536, 8, 0.04, 0.75, MIXED),
            Stage(0.40, 6144, 2, 0.0, 0.8, MIXED),
            Stage(0.28, 16384, 1, 0.0, 0.85, MIXED),
        ),
        {"n_layers": 16, "n_embd": 256, "n_heads": 4, "n_kv_heads": 2},
        lr=0.012,
        lr_embd=3e-3,
        grown=True,
    ),
    "llama": Recipe(
        (4e6, 6e6),
        (
            Stage(0.12, 384, 16, 0.6, 0.3, SINGLE),
            Stage(0.40, 384, 16, 0.08, 0.8, SINGLE),
            Stage(0.10, 384, 16, 0.04, 0.8, MIXED),
            Stage(0.26, 1536, 4, 0.04, 0.75, MIXED),
            Stage(0.12, 4096, 2, 0.0, 0.75, MIXED),
        ),
        {"architecture": "llama", "n_layers": 6, "rope_theta": 500_000.0},
    ),
}
