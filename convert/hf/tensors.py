"""The tensors of the file to be: their names, and their rows, read on demand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import gguf
import numpy as np

from ..errors import ConvertError
from .architecture import HFArchitecture
from .config import Config
from .families.experts import count, stack
from .files.safetensors import BYTES, StoredTensor
from .metadata.rope import factor_tensors
from .views import View, Views, from_values, in_order, mapped, multiplied

# Buffers that old files keep, and the parts of models that see or hear.
_IGNORED_ENDINGS = (
    ".attention.masked_bias",
    ".attention.bias",
    ".rotary_emb.inv_freq",
    "embeddings.position_ids",
)
_IGNORED_PARTS = (
    "vision_tower.",
    "vision_model.",
    "visual.",
    "multi_modal_projector.",
    "vision_adapter.",
    "vision_projection.",
    "vision_projector.",
    "embed_vision.",
    "audio_tower.",
    "embed_audio.",
)
# Layers that draft tokens for the others.
_DRAFTING = re.compile(r"(model\.)?mtp([._].+|$)")
_LAYER = re.compile(r"model\.layers\.(\d{1,4})\.")
# What the runtime loads; gguf-py's table has more.
_LOADED = re.compile(
    r"(token_embd|output|output_norm|token_embd_norm"
    r"|blk\.\d+\.(attn_(norm|gate|q|k|v|qkv|output|q_norm|k_norm)|post_attention_norm|post_ffw_norm"
    r"|ffn_(norm|gate|up|down|gate_inp|(gate|up|down)_(exps|shexp))))\.(weight|bias)"
    r"|blk\.\d+\.ffn_exps\.bias|position_embd\.weight|token_types\.weight|dense_[23]\.weight|cls(\.output)?\.(weight|bias)"
    r"|blk\.\d+\.(attn_output_norm|layer_output_norm)\.(weight|bias)"
    r"|rope_freqs\.weight|per_layer_(token_embd|model_proj|proj_norm)\.weight"
    r"|blk\.\d+\.(ssm_(in|conv1d|norm|out|alpha|beta|ba)|shortconv\.(conv|in_proj|out_proj)"
    r"|attn_sinks|ffn_latent_(up|down)"
    r"|ffn_(gate_up_exps|gate_inp_shexp)|inp_gate|proj|post_norm|layer_output_scale|pre_ffw_norm_2"
    r"|post_ffw_norm_[12])\.weight"
    r"|blk\.\d+\.attn_(q_a|q_b|q_a_norm|kv_a_mqa|kv_a_norm|k_b|v_b)\.weight"
    r"|blk\.\d+\.(ssm_a|ssm_d|ssm_(dt|conv1d)\.bias|ffn_norm|exp_probs_b\.bias"
    r"|ffn_(gate_inp|down_exps)\.scale)"
)

_STACKED = re.compile(r"_exps\.|\.attn_[kv]_b\.")
_OF_EXPERTS = re.compile(r"_(exps|shexp|probs_b|gate_inp)\b")


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor of the file to be."""

    name: str
    view: View


def plan(
    architecture: HFArchitecture, config: Config, stored: Mapping[str, StoredTensor], n_vocab: int
) -> list[PlannedTensor]:
    """The tensors of the file, in the order of llama.cpp's converter: factors, then as stored.

    Raises `ConvertError` for a tensor that the architecture does not know, a bias that it cannot
    keep, and an output matrix that is missing where the model does not share the embedding's.
    """
    factors = {} if architecture.encodes else factor_tensors(architecture.name, config)
    if architecture.given is not None:
        factors |= architecture.given(config)
    planned = [PlannedTensor(name, from_values(values)) for name, values in factors.items()]
    views = _views(architecture, config, stored)
    for tensor in renamed(architecture, config, views, of_weights=True):
        view = tensor.view
        if tensor.name in ("token_embd.weight", "output.weight", "per_layer_token_embd.weight"):
            if view.n_rows < n_vocab:
                raise ConvertError(
                    f"tensor {tensor.name} has {view.n_rows} rows for {n_vocab} tokens"
                )
            view = replace(view, shape=(n_vocab, view.shape[-1]))
        planned.append(PlannedTensor(tensor.name, view))
    _check_output(architecture, config, {tensor.name for tensor in planned})
    return planned


def renamed(
    architecture: HFArchitecture, config: Config, views: Views, *, of_weights: bool = False
) -> list[PlannedTensor]:
    """The file's tensors, made of those with transformers' names by the architecture's rules.

    of_weights: the views are of weights, which factors multiply; otherwise only their order counts.
    Raises `ConvertError` for a tensor that the architecture does not know.
    """
    names = gguf.get_tensor_name_map(
        _arch(architecture.names or architecture.name), config.n_layers
    )
    views = {_new_name(architecture, name): view for name, view in stack(views, config).items()}
    planned = []
    if architecture.rewrite is not None:
        views = architecture.rewrite(config, views)
    for plain, view in views.items():
        new_name = plain
        if not plain.startswith("blk."):
            short = plain.removeprefix("model.")
            new_name = _mapped_name(names, plain) or _mapped_name(names, short) or ""
        routed = _OF_EXPERTS.search(new_name) is not None and not count(config)
        if routed or _LOADED.fullmatch(new_name) is None:
            raise ConvertError(f"tensor {plain:.80} is unknown to architecture {architecture.name}")
        # Readers know three dimensions in stacks alone.
        if len(view.shape) > (3 if _STACKED.search(new_name) else 2):
            raise ConvertError(
                f"tensor {plain:.80} has shape {view.shape}, expected one or two sizes"
            )
        if view.type_name == BYTES:
            raise ConvertError(f"tensor {plain:.80} is stored as {BYTES}, expected weights")
        made = _changed(architecture, config, plain, view)
        if of_weights and architecture.factors is not None:
            made = multiplied(made, architecture.factors(config, plain, view.n_rows))
        planned.append(PlannedTensor(new_name, made))
    return planned


def _new_name(architecture: HFArchitecture, name: str) -> str:
    matches = ((re.fullmatch(old, name), new) for old, new in architecture.renames)
    return next((match.expand(new) for match, new in matches if match), name)


def _mapped_name(names: gguf.TensorNameMap, name: str) -> str | None:
    """The name in the file, where gguf-py knows one."""
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    mapped_name: str | None = names.get_name(name, try_suffixes=(".weight", ".bias"))
    return mapped_name


def _views(
    architecture: HFArchitecture, config: Config, stored: Mapping[str, StoredTensor]
) -> Views:
    """Tensors to write by transformers' names, in the order of the shards."""
    views = {}
    for name, tensor in stored.items():
        plain = plain_name(name)
        if _is_left_out(architecture, config, plain, tensor) or is_drafting(name, config):
            continue
        if not tensor.shape or 0 in tensor.shape:
            raise ConvertError(f"tensor {name:.80} has shape {tensor.shape}, expected sizes")
        views[plain] = View.of(tensor)
    return views


def plain_name(name: str) -> str:
    """transformers' name without the parts that models have which see or hear, too."""
    return name.replace("language_model.", "").replace("model.model.", "model.")


def is_multimodal(name: str) -> bool:
    """Whether a stored tensor is of the parts that the file leaves out."""
    return any(part in name for part in _IGNORED_PARTS)


def is_drafting(name: str, config: Config) -> bool:
    """Whether a stored tensor is of the layers that draft tokens, which the file leaves out."""
    if _DRAFTING.fullmatch(name):
        return True
    layer = _LAYER.match(name) if config.get("num_nextn_predict_layers") else None
    return layer is not None and int(layer[1]) >= config.n_layers


def check_embedding(stored: Mapping[str, StoredTensor], n_vocab: int | None) -> None:
    """`ConvertError` where no tensor has a row for each of `n_vocab` tokens.

    Asked before the vocabulary is read, which makes a token for each.
    """
    if n_vocab is not None and all(tensor.n_rows < n_vocab for tensor in stored.values()):
        most = max((tensor.n_rows for tensor in stored.values()), default=0)
        raise ConvertError(f"the shards hold no embedding: {most} rows for {n_vocab} tokens")


def _arch(name: str) -> gguf.MODEL_ARCH:
    return next(arch for arch, known in gguf.MODEL_ARCH_NAMES.items() if known == name)


def _is_left_out(
    architecture: HFArchitecture, config: Config, name: str, tensor: StoredTensor
) -> bool:
    if name.endswith(_IGNORED_ENDINGS) or is_multimodal(name):
        return True
    if name == "lm_head.weight":
        # transformers would overwrite a shared output matrix with the embedding.
        return architecture.drops_output or config.flag("tie_word_embeddings")
    if architecture.drops_zero_bias and name.endswith(".bias"):
        if tensor.rows(0, tensor.n_rows).any():
            raise ConvertError(f"{name} is not zero: a {architecture.name} file has no biases")
        return True
    return False


def _changed(architecture: HFArchitecture, config: Config, name: str, view: View) -> View:
    """The weights by the architecture's rules: norms with a shift, heads in readers' order."""
    if architecture.norm_shift and name.endswith(architecture.shifted):
        return mapped(view, lambda x: x + np.float32(architecture.norm_shift))
    stem = name.removesuffix(".bias").removesuffix(".weight")
    if not architecture.permuted or not stem.endswith((".q_proj", ".k_proj")):
        return view
    head_dim = config.head_dim
    if view.shape[0] % head_dim:
        raise ConvertError(
            f"tensor {name} has {view.shape[0]} rows, which heads of {head_dim} do not divide"
        )
    # Of the n rotated dimensions, transformers rotates the pairs (i, i + n/2), llama.cpp those of
    # neighbours (2i, 2i + 1).
    n, order = config.rotated_dims, np.arange(view.shape[0]).reshape(-1, head_dim)
    rotated = order[:, :n].reshape(-1, 2, n // 2).swapaxes(1, 2).reshape(-1, n)
    return in_order(view, np.concatenate([rotated, order[:, n:]], 1).ravel())


def _check_output(architecture: HFArchitecture, config: Config, names: set[str]) -> None:
    if "token_embd.weight" not in names:
        raise ConvertError("the shards hold no embedding (model.embed_tokens.weight)")
    shared = architecture.encodes or architecture.drops_output or config.flag("tie_word_embeddings")
    if not shared and "output.weight" not in names:
        raise ConvertError(
            "the shards hold no lm_head.weight, and config.json does not say tie_word_embeddings"
        )
