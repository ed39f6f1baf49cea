"""Which model a pack is of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ....system.spelling import spelt
from ....system.text import one_line
from .errors import ModelMismatch
from .format.adapters import listed
from .format.manifest import ModelFacts

if TYPE_CHECKING:
    from ...loading.model_info import ModelInfo


def facts_of(model: ModelInfo) -> ModelFacts:
    """The facts about a model that a pack stores."""
    config = model.config
    heads = tuple((layer.n_kv_heads, layer.head_dim) for layer in config.kv_layers)
    return ModelFacts(
        model.name,
        model.fingerprint,
        config.n_kv_layers,
        config.n_kv_heads,
        config.head_dim,
        config.n_embd,
        str(model.path.resolve()),
        model.tokenizer_digest,
        heads if len(set(heads)) > 1 else (),
        model.adapters,
    )


def check_model(path: Path, made: ModelFacts, model: ModelInfo) -> None:
    """`ModelMismatch` if other weights or adapters, or another tokenizer, made a pack."""
    facts = facts_of(model)
    if made.adapters != facts.adapters and made.same_model(replace(facts, adapters=made.adapters)):
        raise ModelMismatch(
            path,
            f"it was made with adapters {listed(made.adapters)}, found {listed(facts.adapters)}",
            f"{'give the same' if made.adapters else 'leave out'} {spelt('lora')}, or make another "
            "pack",
            f"it was made with adapters {_named(made)}, found {_named(facts)}",
        )
    if not made.same_model(facts):
        raise ModelMismatch(
            path,
            f"it was made with {made}, this model is {facts}",
            f"use the file that it was made with, {one_line(made.path)}, or another pack",
        )
    if made.tokenizer != facts.tokenizer:
        raise ModelMismatch(
            path,
            f"its tokens were made by another tokenizer (digest {one_line(made.tokenizer)}) "
            f"than that of {model.path.name} (digest {facts.tokenizer}), though the weights are "
            "the same",
            "use the file that it was made with, or make another pack",
        )


def _named(facts: ModelFacts) -> str:
    """The adapters, by the names of their files."""
    return listed([replace(one, path=Path(one.path).name) for one in facts.adapters])
