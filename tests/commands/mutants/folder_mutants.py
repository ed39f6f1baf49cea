"""Folders of Hugging Face models with one thing wrong, each known by a name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from ...convert import hf_folders, vocabularies
from ...convert.hf_models import LLAMA3
from .hostile_tokenizers import Save, hostile_tokenizers, saving, small_json

ESCAPE = "\x1b]0;owned\x07\nkvarn: all is well"
VALUES: dict[str, Any] = {
    **{"null": None, "true": True, "false": False, "0": 0, "-1": -1, "1": 1, "3": 3},
    **{"3 million": 3_000_000, "2^24": 1 << 24, "2^31": 1 << 31, "2^63": 1 << 63},
    **{"10^400": 10**400, "half": 0.5, "50.0": 50.0, "1e308": 1e308, "5e-324": 5e-324},
    **{"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")},
    **{"empty text": "", "text": "x", "surrogate": "\ud800", "NUL": "a\0b", "escape": ESCAPE},
    **{"long text": "\U0001f600" * 20_000, "empty list": [], "[5]": [5], "ragged": [[1], [1, 2]]},
    **{"long list": [0] * 100_000, "empty object": {}, "object": {"a": 1}, "texts": ["a", "b"]},
}
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "vocab_size": 296,
    "tie_word_embeddings": False,
    "_name_or_path": "org/Model-1B-Chat",
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
LONG = {
    "rope_type": "longrope",
    "long_factor": [1.5] * 8,
    "short_factor": [1.0] * 8,
}
GEMMA = {"query_pre_attn_scalar": 16, "sliding_window": 8, "final_logit_softcapping": 5.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "rope_parameters": LLAMA3},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 64},
    "mistral3": {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "rope_parameters": YARN,
    },
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "rope_theta": 1e4},
    "phi3": {
        "architectures": ["Phi3ForCausalLM"],
        "rope_scaling": LONG,
        "original_max_position_embeddings": 64,
        "partial_rotary_factor": 1.0,
    },
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], **GEMMA},
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        **GEMMA,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "cohere2": {
        "architectures": ["Cohere2ForCausalLM"],
        "rotary_pct": 1.0,
        "layer_norm_eps": 1e-5,
        "sliding_window_pattern": 4,
    },
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 1]},
    "granite": {"architectures": ["GraniteForCausalLM"], "embedding_multiplier": 3.0},
    "olmo3": {
        "architectures": ["Olmo3ForCausalLM"],
        "rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 1e4}},
    },
    "exaone4": {"architectures": ["Exaone4ForCausalLM"], "sliding_window": None},
    "hunyuan": {
        "architectures": ["HunYuanDenseV1ForCausalLM"],
        "rope_scaling": {"type": "dynamic", "alpha": 50.0},
    },
    "muse-glimmer": {
        "architectures": ["MuseGlimmerForConditionalGeneration"],
        "layer_types": ["sliding_attention", "full_attention"],
        "layer_rope_theta": [1e4, 0],
    },
    "multimodal": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": {"num_hidden_layers": 2, "hidden_size": 64},
        **GEMMA,
    },
}
SAMPLING = {
    **{"sequence": "x", "top_k": 50, "top_p": 0.9, "min_p": 0.1, "xtc_probability": 0.1},
    **{"xtc_threshold": 0.1, "temperature": 0.7, "penalty_last_n": 3, "penalty_repeat": 1.1},
    **{"mirostat": 1, "mirostat_tau": 5.0, "mirostat_eta": 0.1},
}
CARD = {
    **{"license": "mit", "name": "Model", "author": "me", "version": "1", "language": ["en"]},
    **{"tags": ["a"], "base_model": ["org/x"], "datasets": ["org/y"], "license_link": "here"},
    **{"pipeline_tag": "text", "base_models": [{"name": "x"}], "model_type": "llama"},
}
SETTINGS: dict[str, Any] = {
    "tokenizer_class": "LlamaTokenizer",
    "add_bos_token": True,
    "add_prefix_space": True,
    "bos_token": "<s>",
    "eos_token": {"content": "</s>"},
    "additional_special_tokens": ["<s>"],
    "added_tokens_decoder": {"1": {"content": "<s>", "special": True}},
    "chat_template": "{{ messages }}",
}


def base_files(form: str) -> dict[str, Any]:
    """The files of a folder: objects for JSON, bytes for what is none."""
    files: dict[str, Any] = {
        "config.json": {**COMMON, **CONFIGS["llama"]},
        "generation_config.json": SAMPLING,
        "tokenizer_config.json": SETTINGS,
        "README.md": CARD,
        "added_tokens.json": {},
    }
    if form == "bpe":
        files["tokenizer.json"] = small_json()
        files["tokenizer_config.json"] = {**SETTINGS, "added_tokens_decoder": {}}
    elif form == "pieces":
        files["tokenizer.json"] = vocabularies.sentencepiece_json(vocabularies.small_pieces(296))
    return files


def mutants() -> Iterator[tuple[str, str, Save]]:
    """Name, form of the vocabulary ("model", "pieces" or "bpe"), and what spoils the folder."""
    for name, config in CONFIGS.items():
        for path, value in _changes({**COMMON, **config}):
            yield f"{name} {path}", "model", saving("config.json", value)
    for file in ("generation_config.json", "README.md", "added_tokens.json"):
        for path, value in _changes(base_files("model")[file] or {"x": 297}):
            yield f"{file} {path}", "model", saving(file, value)
    for form in ("bpe", "pieces"):
        for file in ("tokenizer.json", "tokenizer_config.json"):
            for path, value in _changes(base_files(form)[file]):
                yield f"{form} {file} {path}", form, saving(file, value)
    yield from hostile_tokenizers()
    yield from _texts()
    yield from _tensors()


def write_folder(folder: Path, form: str) -> None:
    """A sound folder."""
    hf_folders.write_llama(folder)
    if form != "model":
        (folder / "tokenizer.model").unlink()
    for name, value in base_files(form).items():
        saving(name, value)(folder)


def _changes(document: Any) -> Iterator[tuple[str, Any]]:
    """The document with each value replaced by each of `VALUES`, or left out."""
    for path in _paths(document):
        for name, value in VALUES.items():
            yield f"{'.'.join(map(str, path))} = {name}", _with(document, path, value)
        yield f"{'.'.join(map(str, path))} missing", _with(document, path, ...)


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = list(value) if isinstance(value, dict) else []
    if isinstance(value, list):
        keys = list(range(len(value)))
    for key in keys[:14] if len(keys) < 40 else [keys[0], keys[-1]]:
        yield (*before, key)
        yield from _paths(value[key], (*before, key))


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = deepcopy(document)
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


def _texts() -> Iterator[tuple[str, str, Save]]:
    """Files that are no JSON, or JSON that is hard to read."""
    texts = {
        **{"empty": b"", "cut": b'{"a": [1, ', "not UTF-8": b'{"a": "\xff"}', "list": b"[]"},
        **{"deep": b"[" * 100_000, "deep objects": b'{"a":' * 100_000, "BOM": b"\xef\xbb\xbf{}"},
        **{"digits": b'{"a": ' + b"9" * 10_000 + b"}", "NUL": b"\0" * 100, "number": b"5"},
        **{"twice": b'{"model": 1, "model": 2}', "large": b" " * (5 << 20) + b"{}"},
        "values": b'{"a": [' + b"0," * 3_000_000 + b"0]}",
        "card bomb": b"---\na: &a [x,x]\nb: [*a,*a]\nlicense: [*b,*b]\n---\n",
        "card deep": b"---\n" + b"[" * 5000 + b"\n---\n",
        "card number": b"---\nlicense: 5\nversion: 2024-01-01\nname: 1e999\n---\n",
    }
    names = (
        *("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"),
        *("README.md", "added_tokens.json", "chat_template.json", "chat_template.jinja"),
        *("model.safetensors.index.json", "tokenizer.model", "model-2.safetensors"),
    )
    for name in names:
        for what, text in texts.items():
            for form in ("model", "bpe"):
                yield f"{name} {what}", form, _bytes(name, text)


def _bytes(name: str, data: bytes) -> Save:
    return lambda folder: (folder / name).write_bytes(data) and None


def _tensors() -> Iterator[tuple[str, str, Save]]:
    """Wrong headers of safetensors."""
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    name = "model.layers.0.mlp.up_proj.weight"
    for path, value in _changes({"a": entry, name: entry, "__metadata__": {"format": "pt"}}):
        yield f"safetensors {path}", "model", _replacing(value)
    for n in (0, 1, 7, 8, 9, 100, 1000):
        yield f"safetensors cut at {n}", "model", _cutting(n)
    for length in (0, 1, 1 << 31, 1 << 63, (1 << 64) - 1):
        yield f"safetensors header of {length}", "model", _lengthened(length)


def _replacing(changes: Any) -> Save:
    """Entries of the header by name."""

    def save(folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + n]) | changes
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + n :])

    return save


def _cutting(n: int) -> Save:
    def save(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:n])

    return save


def _lengthened(length: int) -> Save:
    def save(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])

    return save
