"""Text encoders: their keys, tensors and part of the table, as llama.cpp's converter has them.

One thing differs: a classifier that reads what the pooler makes of the first token keeps it, as
tensor `cls`. llama.cpp's converter drops the pooler, which changes the scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, PoolingType

from ....system.text import brief
from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..config import Config
from ..jsons import read_bytes
from ..views import View, Views

_MAX_MODULES = 1 << 20
_LEFT_OUT = ("cls.predictions", "cls.seq_relationship")
_OLD_ENDS = {".gamma": ".weight", ".beta": ".bias"}
_POOLINGS = {
    "pooling_mode_mean_tokens": PoolingType.MEAN,
    "pooling_mode_cls_token": PoolingType.CLS,
    "pooling_mode_lasttoken": PoolingType.LAST,
}


def add_bert(writer: GGUFWriter, config: Config) -> None:
    """`bert.*`; `ConvertError` for another activation, and positions that are no table."""
    activation = config.get("hidden_act") or "gelu"
    if activation not in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
        raise ConvertError(
            f"config.json: the activation is {brief(activation)}, expected gelu for bert"
        )
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise ConvertError(
            f"config.json: position_embedding_type is {brief(kind)}, expected absolute for bert"
        )
    writer.add_block_count(config.n_layers)
    writer.add_context_length(config.integer("max_position_embeddings"))
    writer.add_embedding_length(config.integer("hidden_size"))
    writer.add_feed_forward_length(config.integer("intermediate_size"))
    writer.add_head_count(config.n_heads)
    writer.add_layer_norm_eps(config.number("layer_norm_eps"))
    writer.add_causal_attention(False)
    writer.add_token_type_count(config.integer("type_vocab_size"))


def add_classifier(writer: GGUFWriter, config: Config) -> None:
    """`bert.*` of a model that scores texts, with the names of its scores."""
    add_bert(writer, config)
    names = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if not isinstance(names, Mapping) or not all(isinstance(x, str) for x in names.values()):
        raise ConvertError(f"config.json: id2label is {brief(names)}, expected names")
    writer.add_classifier_output_labels([name for _, name in sorted(names.items())])


def tensors(config: Config, views: Views) -> dict[str, View]:
    """The tensors of an encoder without what predicts words, and without the pooler."""
    kept = _named(views)
    return {name: view for name, view in kept.items() if not name.startswith("pooler.")}


def classifier_tensors(config: Config, views: Views) -> dict[str, View]:
    """The tensors of an encoder with a classifier, by the names of one with a hidden layer."""
    ends = (("pooler.dense.", "classifier.dense."), ("classifier.", "classifier.out_proj."))
    made = {}
    for name, view in _named(views).items():
        old, new = next((pair for pair in ends if name.startswith(pair[0])), ("", ""))
        made[new + name.removeprefix(old)] = view
    return made


def _named(views: Views) -> dict[str, View]:
    made = {}
    for name, view in views.items():
        plain = name.removeprefix("bert.")
        for old, new in _OLD_ENDS.items():
            if plain.endswith(old):
                plain = plain.removesuffix(old) + new
        if not plain.startswith(_LEFT_OUT):
            made[plain] = view
    return made


def add_pooling(writer: GGUFWriter, folder: Path) -> None:
    """How the tokens of a text make one vector: as modules.json (sentence-transformers) says, or
    by the classifier. `ConvertError` for a way that files of the format cannot have."""
    if any(name.startswith("cls.") for name in writer.tensors[0]):
        writer.add_pooling_type(PoolingType.RANK)
        return
    path = folder / "modules.json"
    if not path.is_file():
        return
    modules = _json(path)
    kinds = modules if isinstance(modules, list) else []
    for module in kinds:
        kind = module.get("type") if isinstance(module, Mapping) else None
        if isinstance(kind, str) and kind.endswith(".Pooling"):
            writer.add_pooling_type(_pooling_of(folder, module.get("path")))
        elif isinstance(kind, str) and not kind.endswith((".Transformer", ".Normalize")):
            raise ConvertError(
                f"modules.json: {brief(kind)} follows the encoder, which a bert file cannot have"
            )


def _pooling_of(folder: Path, name: object) -> PoolingType:
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in name:
        raise ConvertError(f"modules.json: the pooling is in {brief(name)}, expected a folder")
    path = folder / name / "config.json"
    settings = _json(path)
    chosen = settings if isinstance(settings, Mapping) else {}
    modes = [key for key, on in chosen.items() if key.startswith("pooling_mode_") and on is True]
    if isinstance(chosen.get("pooling_mode"), str):  # as newer versions write it
        mode = {"mean": "mean_tokens", "cls": "cls_token"}.get(chosen["pooling_mode"])
        modes = [f"pooling_mode_{mode or chosen['pooling_mode']}"]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ConvertError(
            f"{name}/config.json: the pooling is {brief(', '.join(modes))}, expected one of "
            f"{', '.join(_POOLINGS)}"
        )
    return _POOLINGS[modes[0]]


def _json(path: Path) -> Any:
    try:
        return json.loads(read_bytes(path, _MAX_MODULES))
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"{path.name} is no JSON: {brief(str(error))}") from error


_DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 512,
    "intermediate_size": 3072,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "vocab_size": 30_522,
}
_BERT = HFArchitecture("bert", add_bert, encodes=True, rewrite=tensors, defaults=_DEFAULTS)
_SCORING = HFArchitecture(
    "bert", add_classifier, encodes=True, rewrite=classifier_tensors, defaults=_DEFAULTS
)
ENTRIES = {
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "BertForSequenceClassification": _SCORING,
}
"""By the names of config.json's `architectures`."""
