"""The table of Hugging Face architectures that become GGUF files, as data.

Names are those of config.json's `architectures`; facts are llama.cpp's (`conversion/*.py` as
packaged in llama-cpp-python 0.3.36), defaults those of transformers' configuration classes, which
config.json may leave out. Mixtures of experts and hybrids are in `families.entries`,
text encoders in `families.text_encoders`.
"""

from __future__ import annotations

from . import keys
from .architecture import GEMMA, GEMMA3, HFArchitecture, defaults
from .families import layer_norms, muse_glimmer, nomic, text_encoders
from .families.entries import ENTRIES
from .families.experts import split_granite

_LLAMA = HFArchitecture(
    "llama", keys.add_llama, permuted=True, defaults=defaults(2048, 10_000.0, 1e-6)
)
_MISTRAL = HFArchitecture(
    "llama",
    keys.add_llama,
    permuted=True,
    defaults=defaults(131_072, 10_000.0, 1e-6, num_key_value_heads=8, sliding_window=4096),
)
_MISTRAL3 = HFArchitecture(
    "mistral3",
    keys.add_mistral3,
    permuted=True,
    defaults={
        "max_position_embeddings": 262_144,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
    },
)
_QWEN = {"max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0}
_GEMMA3 = HFArchitecture(
    "gemma3",
    keys.add_gemma3,
    norm_shift=1.0,
    space_prefix=False,
    activation="hidden_activation",
    fixed={"use_bidirectional_attention": False, "attn_logit_softcapping": 0},
    defaults=GEMMA3,
)

_ERNIE = HFArchitecture(
    "ernie4_5",
    keys.add_qwen,
    defaults=defaults(
        131_072, 500_000.0, 1e-5, num_key_value_heads=2, head_dim=128, tie_word_embeddings=True
    ),
)

HF_ARCHITECTURES: dict[str, HFArchitecture] = {
    "LlamaForCausalLM": _LLAMA,
    "LLaMAForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "Ministral3ForCausalLM": _MISTRAL3,
    "Mistral3ForConditionalGeneration": _MISTRAL3,
    "Qwen2ForCausalLM": HFArchitecture("qwen2", keys.add_qwen, defaults=_QWEN),
    "Qwen3ForCausalLM": HFArchitecture("qwen3", keys.add_qwen, defaults={**_QWEN, "head_dim": 128}),
    "Qwen3VLForConditionalGeneration": HFArchitecture(
        "qwen3vl", keys.add_qwen3vl, defaults=defaults(128_000, 500_000.0, 1e-6, head_dim=128)
    ),
    "Phi3ForCausalLM": HFArchitecture(
        "phi3",
        keys.add_phi3,
        added_tokens_as_listed=True,
        defaults=defaults(4096, 10_000.0, 1e-5, original_max_position_embeddings=4096),
    ),
    "GemmaForCausalLM": HFArchitecture(
        "gemma",
        keys.add_gemma,
        norm_shift=1.0,
        drops_output=True,
        space_prefix=False,
        activation="hidden_activation",
        defaults=defaults(8192, 10_000.0, 1e-6, head_dim=256, tie_word_embeddings=True),
    ),
    "Gemma2ForCausalLM": HFArchitecture(
        "gemma2",
        keys.add_gemma2,
        norm_shift=1.0,
        drops_output=True,
        space_prefix=False,
        activation="hidden_activation",
        defaults={
            **GEMMA,
            "max_position_embeddings": 8192,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "rope_theta": 10_000.0,
        },
    ),
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "CohereForCausalLM": HFArchitecture(
        "command-r",
        layer_norms.add_command_r,
        drops_output=True,
        defaults=defaults(
            8192, 500_000.0, logit_scale=0.0625, layer_norm_eps=1e-5, tie_word_embeddings=True
        ),
    ),
    "Cohere2ForCausalLM": HFArchitecture(
        "cohere2",
        keys.add_cohere2,
        drops_output=True,
        drops_zero_bias=True,
        defaults=defaults(
            8192,
            10_000.0,
            logit_scale=0.0625,
            layer_norm_eps=1e-5,
            sliding_window=4096,
            tie_word_embeddings=True,
        ),
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
        defaults=defaults(
            131_072,
            10_000.0,
            1e-5,
            head_dim=128,
            num_key_value_heads=2,
            sliding_window=2048,
            final_logit_softcapping=20.0,
            qk_scale_factor=3.87,
            output_multiplier=26.0**-0.5,
        ),
    ),
    "SmolLM3ForCausalLM": HFArchitecture(
        "smollm3",
        keys.add_smollm3,
        permuted=True,
        defaults=defaults(
            32_768, 2_000_000.0, 1e-6, num_key_value_heads=4, tie_word_embeddings=True
        ),
    ),
    "GraniteForCausalLM": HFArchitecture(
        "granite",
        keys.add_granite,
        permuted=True,
        rewrite=split_granite,
        defaults=defaults(
            2048,
            10_000.0,
            1e-6,
            **keys.UNIT_SCALES,
        ),
    ),
    "Olmo2ForCausalLM": HFArchitecture(
        "olmo2", keys.add_olmo2, defaults=defaults(2048, 10_000.0, 1e-5)
    ),
    "Olmo3ForCausalLM": HFArchitecture(
        "olmo2", keys.add_olmo2, defaults=defaults(2048, 500_000.0, 1e-5, sliding_window=4096)
    ),
    "Glm4ForCausalLM": HFArchitecture(
        "glm4",
        keys.add_glm4,
        defaults=defaults(
            131_072,
            10_000.0,
            1.5625e-7,
            num_key_value_heads=2,
            head_dim=128,
            partial_rotary_factor=0.5,
        ),
    ),
    "SeedOssForCausalLM": HFArchitecture(
        "seed_oss",
        keys.add_qwen,
        defaults=defaults(524_288, 10_000.0, 1e-6, num_key_value_heads=8, head_dim=128),
    ),
    "Exaone4ForCausalLM": HFArchitecture(
        "exaone4", keys.add_exaone4, defaults=defaults(2048, 10_000.0, 1e-5, sliding_window=4096)
    ),
    "HunYuanDenseV1ForCausalLM": HFArchitecture(
        "hunyuan-dense", keys.add_hunyuan, defaults=defaults(2048, 10_000.0, 1e-5)
    ),
    "Ernie4_5ForCausalLM": _ERNIE,
    "Ernie4_5_ForCausalLM": _ERNIE,
    "Starcoder2ForCausalLM": HFArchitecture(
        "starcoder2",
        layer_norms.add_starcoder2,
        defaults=defaults(
            4096, 10_000.0, num_key_value_heads=2, norm_epsilon=1e-5, tie_word_embeddings=True
        ),
    ),
    "StableLmForCausalLM": HFArchitecture(
        "stablelm",
        layer_norms.add_stablelm,
        defaults=defaults(4096, 10_000.0, layer_norm_eps=1e-5, partial_rotary_factor=0.25),
    ),
    "NemotronForCausalLM": HFArchitecture(
        "nemotron",
        layer_norms.add_nemotron,
        norm_shift=1.0,
        defaults=defaults(4096, 10_000.0, norm_eps=1e-5, partial_rotary_factor=0.5),
    ),
    "PhiForCausalLM": HFArchitecture(
        "phi2",
        layer_norms.add_phi2,
        defaults=defaults(2048, 10_000.0, layer_norm_eps=1e-5, partial_rotary_factor=0.5),
    ),
    **ENTRIES,
    **text_encoders.ENTRIES,
    "NomicBertModel": nomic.ENTRY,
}
