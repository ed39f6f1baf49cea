"""Models whose types of tensors depend on layers, heads, experts and names; llama.cpp's choice."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from kvarn.convert.quantize.mixes import MIXES

from . import models
from .models import Sizes

EXTRA = {
    "blk.0.ssm_conv1d.weight": (2, 256),
    "blk.0.odd.weight": (1, 256),
    "blk.0.unnamed": (2, 256),
    "per_layer_token_embd.weight": (2, 256),
}


@dataclass(frozen=True)
class Case:
    """A model, whether there is an importance matrix, and the mixes to try."""

    sizes: Sizes
    with_importance: bool = False
    mixes: tuple[str, ...] = tuple(MIXES)


CASES = {
    "grouped": Case(Sizes()),
    "grouped, importance": Case(Sizes(), True),
    "every head its own": Case(Sizes(n_kv_heads=8, tied=False, n_layers=33)),
    "fused": Case(Sizes(architecture="phi3", fused=True, tied=False)),
    "eight experts": Case(Sizes(n_experts=8, tied=False, n_layers=9)),
    "four experts": Case(Sizes(n_experts=4, n_layers=9)),
    "four experts, importance": Case(Sizes(n_experts=4, n_layers=9), True),
    "70B": Case(Sizes(n_layers=80), False, ("q3_k_s", "q3_k_m", "q4_k_m")),
    "rows of 96": Case(Sizes(n_embd=96, n_ff=288, n_layers=4)),
    "rows of 100": Case(Sizes(n_embd=100, n_ff=512, n_layers=4, tied=False)),
}


def chosen_by_llama_cpp(case: Case, mix: str, folder: Path) -> dict[str, str]:
    """Types by name of tensor, in the file that it writes."""
    from . import ggml

    source, target = folder / "source.gguf", folder / "target.gguf"
    models.write(source, case.sizes, extra=EXTRA)
    imatrix = {"blk.0.none.weight": np.ones(1, np.float32)} if case.with_importance else None
    ggml.quantise_file(source, target, MIXES[mix].file_type, imatrix)
    return models.types_of(target)


def summary(types: dict[str, str]) -> dict[str, str]:
    """Kinds of tensors by their types from layer to layer: {"6 Q6_K, 12 Q4_K": "attn_v ffn_down"}.

    Without vectors, which always stay as they are.
    """
    kinds: dict[str, list[tuple[int, str]]] = {}
    for name, type_name in types.items():
        layer, _, kind = name.removeprefix("blk.").partition(".")
        place = (kind, int(layer)) if name.startswith("blk.") else (name, 0)
        if not name.endswith(("_norm.weight", ".bias")):
            kinds.setdefault(place[0].removesuffix(".weight"), []).append((place[1], type_name))
    kinds_by_runs: dict[str, list[str]] = {}
    for kind, layers in sorted(kinds.items()):
        runs = groupby(type_name for _, type_name in sorted(layers))
        kinds_by_runs.setdefault(
            ", ".join(f"{len([*run])} {name}" for name, run in runs), []
        ).append(kind)
    return {runs: " ".join(names) for runs, names in kinds_by_runs.items()}
