"""Prompts of one token, of about 64, and of more than a chunk, for models with scans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from . import tiny_models
from .tiny.case import Tiny
from .tiny_cases import CASES

NAMES = (
    *("granitehybrid", "granitehybrid-experts", "nemotron_h", "nemotron_h_moe-latent"),
    *("falcon-h1", "falcon-h1-unnormed"),
)
LENGTHS = 1, 63, 64, 65, 513
N_GREEDY, SEED = 8, 7


def case_of(name: str) -> Tiny:
    """The tiny model in a context for all of these prompts."""
    return replace(next(case for case in CASES if case.name == name), n_ctx=640)


def ids(case: Tiny, length: int) -> list[int]:
    """A prompt of so many tokens."""
    return tiny_models.prompt(replace(case, n_prompt=length), SEED)


def kept(oracle: Any, case: Tiny, length: int) -> tuple[list[int], np.ndarray]:
    """llama.cpp's greedy ids after a prompt, and the logits of the first and of the last."""
    greedy, logits = oracle.greedy(ids(case, length), N_GREEDY)
    return greedy, logits[[0, -1]]


def keys(name: str, length: int) -> tuple[str, str]:
    """Under which names a golden file has the ids and the logits."""
    return f"{name} {length} ids", f"{name} {length} logits"
