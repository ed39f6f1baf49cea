"""Text encoders: their keys, tensors and part of the table, as llama.cpp's converter has them.

One thing differs: a classifier that reads what the pooler makes of the first token keeps it, as
tensor `cls`. llama.cpp's converter drops the pooler, which changes the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from gguf import GGUFWriter

from ...errors import ConvertError
from ..architecture import HFArchitecture
from ..config import Config, number
from ..files.jsons import brief
from ..metadata.keys import add_base, add_head_dim
from ..metadata.layers import add_windows, usual_windows, windowed_layers
from ..views import View, Views, part

_LEFT_OUT = ("cls.predictions", "cls.seq_relationship")
_OLD_ENDS = {".gamma": ".weight", ".beta": ".bias"}


def add_bert(writer: GGUFWriter, config: Config, padded: bool = False) -> None:
    """`bert.*`; `ConvertError` for another activation, and positions that are no table. padded: the
    table begins with positions up to that of the padding, which no text has."""
    activation = config.get("hidden_act") if "hidden_act" in config else "gelu"
    if activation not in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
        raise ConvertError(
            f"config.json: the activation is {brief(activation)}, expected gelu for bert"
        )
    first = _first_position(config) if padded else 0
    add_encoder_sizes(writer, config, config.integer("max_position_embeddings") - first)
    add_encoder_norms(writer, config)


def add_encoder_sizes(writer: GGUFWriter, config: Config, n_ctx: int) -> None:
    """Layers, context, widths and heads."""
    writer.add_block_count(config.n_layers)
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(config.integer("hidden_size"))
    writer.add_feed_forward_length(config.integer("intermediate_size"))
    writer.add_head_count(config.n_heads)


def add_encoder_norms(writer: GGUFWriter, config: Config) -> None:
    """What BERT and NomicBERT share beside sizes."""
    writer.add_layer_norm_eps(config.number("layer_norm_eps"))
    writer.add_causal_attention(False)
    writer.add_token_type_count(config.integer("type_vocab_size"))


def _first_position(config: Config) -> int:
    first, n = config.integer("pad_token_id") + 1, config.integer("max_position_embeddings")
    if first >= n:
        raise ConvertError(f"config.json: pad_token_id is {first - 1}, expected below {n - 1}")
    return first


def add_classifier(writer: GGUFWriter, config: Config, padded: bool = False) -> None:
    """`bert.*` of a model that scores texts, with the names of its scores."""
    add_bert(writer, config, padded)
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


def xlm_tensors(config: Config, views: Views) -> dict[str, View]:
    """The tensors of XLM-RoBERTa, whose classifier has its own hidden layer."""
    kept, name = tensors(config, views), "embeddings.position_embeddings.weight"
    if name in kept:
        kept[name] = part(kept[name], slice(_first_position(config), None))
    return kept


def _named(views: Views) -> dict[str, View]:
    made = {}
    for name, view in views.items():
        plain = name.removeprefix("bert.").removeprefix("roberta.")
        for old, new in _OLD_ENDS.items():
            if plain.endswith(old):
                plain = plain.removesuffix(old) + new
        if not plain.startswith(_LEFT_OUT):
            made[plain] = view
    return made


def add_gemma(writer: GGUFWriter, config: Config) -> None:
    """`gemma-embedding.*`: Gemma 3 that reads in both directions."""
    if not config.flag("use_bidirectional_attention"):
        raise ConvertError(
            "config.json: use_bidirectional_attention is not true, expected a model that reads in "
            "both directions"
        )
    activation = config.get("hidden_activation")
    if activation not in ("gelu_pytorch_tanh", "gelu"):
        raise ConvertError(f"config.json: the activation is {brief(activation)}, expected gelu")
    if (kind := config.rope.get("rope_type")) != "default":
        raise ConvertError(f"config.json: rope_type is {brief(kind)}, expected none")
    if (scalar := config.number("query_pre_attn_scalar")) != config.head_dim:
        raise ConvertError(
            f"config.json: query_pre_attn_scalar is {scalar:g}, expected {config.head_dim}"
        )
    add_encoder_sizes(writer, config, config.integer("max_position_embeddings"))
    writer.add_head_count_kv(config.n_kv_heads)
    add_head_dim(writer, config)
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    add_base(writer, config)
    local = {"rope_theta": config.get("rope_local_base_freq"), **config.rope.get("local", {})}
    writer.add_rope_freq_base_swa(number(local, "rope_theta", "config.json"))
    add_windows(writer, config, windowed_layers(config, 6), usual_windows(config, 6))


_BERT = HFArchitecture(
    "bert",
    add_bert,
    encodes=True,
    vocabulary="bert",
    rewrite=tensors,
    fixed={"position_embedding_type": "absolute"},
)
_SCORING = replace(_BERT, add_keys=add_classifier, rewrite=classifier_tensors)
_XLM = replace(_BERT, add_keys=partial(add_bert, padded=True), rewrite=xlm_tensors)
_GEMMA = HFArchitecture(
    "gemma-embedding", add_gemma, norm_shift=1.0, space_prefix=False, encodes=True
)
ENTRIES = {
    "BertModel": _BERT,
    "BertForMaskedLM": _BERT,
    "BertForSequenceClassification": _SCORING,
    "XLMRobertaModel": _XLM,
    "XLMRobertaForSequenceClassification": replace(
        _XLM, add_keys=partial(add_classifier, padded=True)
    ),
    "Gemma3TextModel": _GEMMA,
}
"""By the names of config.json's `architectures`."""
