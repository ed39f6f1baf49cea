"""The table of Hugging Face architectures that become GGUF files, as data.

Names are those of config.json's `architectures`; facts are llama.cpp's (`conversion/*.py` as
packaged in llama-cpp-python 0.3.36). defaults.json has what config.json may leave out, by the same
names: the defaults of transformers' configuration classes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any

from .architecture import HFArchitecture
from .families import (
    deepseek,
    experts,
    falcon_h1,
    gemma4,
    gpt_oss,
    hybrids,
    laguna,
    layer_norms,
    mamba2,
    muse_glimmer,
    nemotron_h,
    nomic,
    text_encoders,
)
from .metadata import keys

_LLAMA = HFArchitecture("llama", keys.add_llama, permuted=True)
_MISTRAL3 = HFArchitecture("mistral3", keys.add_mistral3, permuted=True)
_GEMMA = HFArchitecture(
    "gemma",
    keys.add_gemma,
    norm_shift=1.0,
    drops_output=True,
    space_prefix=False,
    activation="hidden_activation",
)
_GEMMA3 = HFArchitecture(
    "gemma3",
    keys.add_gemma3,
    norm_shift=1.0,
    space_prefix=False,
    activation="hidden_activation",
    fixed={"use_bidirectional_attention": False, "attn_logit_softcapping": 0},
)
_COHERE = HFArchitecture("command-r", layer_norms.add_command_r, drops_output=True)
_OLMO2 = HFArchitecture("olmo2", keys.add_olmo2)
_ERNIE = HFArchitecture("ernie4_5", keys.add_qwen)

_QWEN_NORMS = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")
_QWEN35 = HFArchitecture(
    "qwen35",
    hybrids.add_qwen35,
    norm_shift=1.0,
    shifted=_QWEN_NORMS,
    renames=((r"(.+\.linear_attn)\.dt_bias", r"\1.dt_proj.bias"),),
    rewrite=hybrids.cyclic_delta_nets,
    fixed={"attn_output_gate": True},
)
_QWEN35MOE = replace(_QWEN35, name="qwen35moe", add_keys=hybrids.add_qwen35moe)
_GRANITE = HFArchitecture(
    "granitemoe", experts.add_granite_moe, permuted=True, rewrite=experts.split_granite
)
_LFM2 = HFArchitecture(
    "lfm2",
    hybrids.add_lfm2,
    renames=((r"(.+\.expert_bias)", r"\1.bias"),),
    rewrite=hybrids.short_convolutions,
    fixed={"conv_bias": False, "routed_scaling_factor": 1},
)
_DEEPSEEK = HFArchitecture(
    "deepseek2",
    partial(deepseek.add_keys, scores="sigmoid"),
    rewrite=deepseek.tensors,
    fixed={
        "attention_bias": False,
        "mlp_bias": False,
        "moe_layer_freq": 1,
        "rope_interleave": True,
    },
)

_ENTRIES = {
    "LlamaForCausalLM": _LLAMA,
    "LLaMAForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Ministral3ForCausalLM": _MISTRAL3,
    "Mistral3ForConditionalGeneration": _MISTRAL3,
    "Qwen2ForCausalLM": HFArchitecture("qwen2", keys.add_qwen),
    "Qwen3ForCausalLM": HFArchitecture("qwen3", keys.add_qwen),
    "Qwen3VLForConditionalGeneration": HFArchitecture("qwen3vl", keys.add_qwen3vl),
    "Phi3ForCausalLM": HFArchitecture("phi3", keys.add_phi3, added_tokens_as_listed=True),
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": replace(_GEMMA, name="gemma2", add_keys=keys.add_gemma2),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "CohereForCausalLM": _COHERE,
    "Cohere2ForCausalLM": replace(
        _COHERE, name="cohere2", add_keys=keys.add_cohere2, drops_zero_bias=True
    ),
    "MuseGlimmerForConditionalGeneration": HFArchitecture(
        "muse-glimmer",
        muse_glimmer.add_keys,
        permuted=True,
        norm_shift=1.0,
        shifted="layernorm.weight",
        given=muse_glimmer.norms,
        names="afmoe",
        activation="hidden_activation",
        fixed={"post_norm_eps": 1e-8},
    ),
    "SmolLM3ForCausalLM": HFArchitecture("smollm3", keys.add_smollm3, permuted=True),
    "GraniteForCausalLM": HFArchitecture(
        "granite", keys.add_granite, permuted=True, rewrite=experts.split_granite
    ),
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": _OLMO2,
    "Glm4ForCausalLM": HFArchitecture("glm4", keys.add_glm4),
    "SeedOssForCausalLM": HFArchitecture("seed_oss", keys.add_qwen),
    "Exaone4ForCausalLM": HFArchitecture("exaone4", keys.add_exaone4),
    "HunYuanDenseV1ForCausalLM": HFArchitecture("hunyuan-dense", keys.add_hunyuan),
    "Ernie4_5ForCausalLM": _ERNIE,
    "Ernie4_5_ForCausalLM": _ERNIE,
    "Starcoder2ForCausalLM": HFArchitecture("starcoder2", layer_norms.add_starcoder2),
    "StableLmForCausalLM": HFArchitecture("stablelm", layer_norms.add_stablelm),
    "NemotronForCausalLM": HFArchitecture("nemotron", layer_norms.add_nemotron, norm_shift=1.0),
    "PhiForCausalLM": HFArchitecture("phi2", layer_norms.add_phi2),
    "Qwen3_5ForConditionalGeneration": _QWEN35,
    "Qwen3_5ForCausalLM": _QWEN35,
    "Qwen3_5MoeForConditionalGeneration": _QWEN35MOE,
    "Qwen3_5MoeForCausalLM": _QWEN35MOE,
    "Qwen3NextForCausalLM": replace(
        _QWEN35, name="qwen3next", add_keys=hybrids.add_qwen3next, rewrite=hybrids.delta_nets
    ),
    "Qwen3MoeForCausalLM": HFArchitecture("qwen3moe", experts.add_qwen_moe, rewrite=experts.split),
    "Qwen2MoeForCausalLM": HFArchitecture("qwen2moe", experts.add_qwen_moe, rewrite=experts.split),
    "GptOssForCausalLM": gpt_oss.ENTRY,
    "Gemma4ForCausalLM": gemma4.ENTRY,
    "Gemma4ForConditionalGeneration": gemma4.ENTRY,
    "MixtralForCausalLM": HFArchitecture(
        "llama", experts.add_mixtral, permuted=True, rewrite=experts.split
    ),
    "Lfm2ForCausalLM": _LFM2,
    "Lfm2MoeForCausalLM": replace(_LFM2, name="lfm2moe", add_keys=hybrids.add_lfm2moe),
    "OlmoeForCausalLM": HFArchitecture(
        "olmoe", experts.add_olmoe, rewrite=experts.split, fixed={"clip_qkv": None}
    ),
    "GraniteMoeForCausalLM": _GRANITE,
    "GraniteMoeSharedForCausalLM": _GRANITE,
    "GraniteMoeHybridForCausalLM": replace(
        _GRANITE,
        name="granitehybrid",
        add_keys=mamba2.add_granite4,
        choose=mamba2.choose_granite,
        rewrite=mamba2.granite_hybrids,
    ),
    "BambaForCausalLM": HFArchitecture(
        "granitehybrid", mamba2.add_bamba, permuted=True, rewrite=mamba2.scans
    ),
    "NemotronHForCausalLM": nemotron_h.ENTRY,
    "FalconH1ForCausalLM": falcon_h1.ENTRY,
    "Glm4MoeForCausalLM": HFArchitecture("glm4moe", experts.add_glm4_moe, rewrite=experts.split),
    "DeepseekV2ForCausalLM": replace(
        _DEEPSEEK, add_keys=partial(deepseek.add_keys, scores="softmax")
    ),
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "Glm4MoeLiteForCausalLM": _DEEPSEEK,
    "LagunaForCausalLM": laguna.ENTRY,
    "Ernie4_5_MoeForCausalLM": HFArchitecture(
        "ernie4_5-moe",
        experts.add_ernie_moe,
        rewrite=experts.split,
        fixed={"moe_layer_interval": 1},
    ),
    **text_encoders.ENTRIES,
    "NomicBertModel": nomic.ENTRY,
}


def _defaults() -> dict[str, dict[str, Any]]:
    """The defaults by name; those of several names stand in the file once."""
    listed = json.loads((files(__package__) / "defaults.json").read_text("utf-8"))
    return {name: values for names, values in listed.items() for name in names.split()}


_DEFAULTS = _defaults()
HF_ARCHITECTURES: dict[str, HFArchitecture] = {
    name: replace(entry, defaults=_DEFAULTS[name]) for name, entry in _ENTRIES.items()
}
