"""Arguments of llama-cpp-python's `Llama`: which kvarn takes, which change nothing, which it lacks.

Source: llama-cpp-python 0.3.36, `llama_cpp/llama.py`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..runtime.draft import Ngram
from ..runtime.draft.base import MOST_TOKENS
from ..runtime.sampling import Constraint, Sampler
from ..system.errors import KvarnError
from ..system.reading import MOST_TEXT, read_file

RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)
KV_TYPES = {None: "f16", 1: "f16", 8: "q8_0", 2: "q4_0"}
"""ggml's numbers of types → kvarn's names."""
_FREE = frozenset(
    "split_mode main_gpu tensor_split use_mmap use_mlock n_batch n_ubatch n_threads_batch "
    "offload_kqv flash_attn op_offload swa_full no_perf numa logits_all embedding f16_kv n_parts "
    "n_gpu_layers".split()
)
"""Arguments of a model that concern speed, memory or what may be asked, and no result."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys("chat_format chat_handler tokenizer kv_overrides lora_base".split(), ()),
    **dict.fromkeys("stopping_criteria logits_processor".split(), ()),
    **dict.fromkeys("rope_scaling_type pooling_type attention_type yarn_ext_factor".split(), (-1,)),
    **dict.fromkeys("vocab_only spm_infill yarn_orig_ctx".split(), (0,)),
    **dict.fromkeys("tfs_z yarn_attn_factor yarn_beta_slow".split(), (1,)),
    "yarn_beta_fast": (32,),
    "rope_freq_base": (0, 10000),  # LangChain always sends its own default
    "rope_freq_scale": (0, 1),
    "device": ("cpu",),
    "suffix": ("",),
    "functions": ([],),
    "function_call": ("none",),
}
"""Arguments that change results → the values, beside None, with which they do not."""
_SAMPLING = {one.name: one.name for one in fields(Sampler) if one.name != "n_probs"} | {
    "temperature": "temp",
    "mirostat_mode": "mirostat",
    "grammar": "constraint",
}
"""Argument of a request → option of `Sampler`."""


class CompatError(KvarnError, ValueError):
    """An argument of llama-cpp-python that kvarn does not have, or not with this value."""


@contextmanager
def value_errors() -> Iterator[None]:
    """Errors of kvarn as `CompatError`, which is a ValueError, as programs expect it here."""
    try:
        yield
    except KvarnError as error:
        raise CompatError(str(error)) from error


class LlamaGrammar(Constraint):
    """A grammar that answers match, in llama.cpp's GBNF or as a JSON schema."""

    @classmethod
    @value_errors()
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar from GBNF's text."""
        return cls("gbnf", grammar)

    @classmethod
    @value_errors()
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """A grammar from a file of GBNF."""
        return cls.from_string(read_file(Path(file), MOST_TEXT).decode("utf-8", "replace"))

    @classmethod
    @value_errors()
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar from a JSON schema's text."""
        return cls("json_schema", json_schema)


class LlamaPromptLookupDecoding(Ngram):
    """Prompt look-up, as `kvarn.Ngram` does it: a draft of at most `num_pred_tokens` tokens."""

    @value_errors()
    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        super().__init__(max_tokens=min(num_pred_tokens, MOST_TOKENS))


@dataclass(frozen=True)
class Request:
    """How one answer is made. max_tokens: 0 or less: as many as fit. n_top: log probabilities of
    each token and of so many others; None: none. model: what the response calls the model."""

    sampler: Sampler
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    echo: bool
    n_top: int | None
    model: str | None


def check_model_arguments(options: Mapping[str, Any]) -> None:
    """Raises `CompatError` for arguments of a model that kvarn does not have."""
    if (layers := options.get("n_gpu_layers")) not in (None, 0):
        warnings.warn(
            f"n_gpu_layers is {layers}: kvarn.compat.Llama computes on the CPU", stacklevel=3
        )
    _check({name: value for name, value in options.items() if name not in _FREE}, "Llama")


def request_of(given: Mapping[str, Any], defaults: Mapping[str, Any], call: str) -> Request:
    """The arguments of a request. defaults: options of `Sampler`.

    Raises `CompatError` for one that kvarn does not have, and for a value that is none.
    """
    left = {name: value for name, value in given.items() if value is not None}
    sampling = {
        _SAMPLING[name]: left.pop(name) for name in given if name in _SAMPLING & left.keys()
    }
    limit, stop = left.pop("max_tokens", 0), left.pop("stop", ())
    top, n_top = left.pop("logprobs", False), left.pop("top_logprobs", 0)
    stream, echo, model = (left.pop(name, None) for name in ("stream", "echo", "model"))
    _check(left, call)
    if not isinstance(grammar := sampling.get("constraint"), Constraint | None):
        raise CompatError(f"{call}: grammar is {grammar!r:.50}, expected a LlamaGrammar")
    if sampling.get("seed") in RANDOM_SEEDS:
        sampling.pop("seed", None)
    if bias := sampling.get("logit_bias"):
        sampling["logit_bias"] = {int(token): value for token, value in bias.items()}
    n_top = None if top is False else n_top if top is True else top
    with value_errors():
        sampler = Sampler(**{**defaults, **sampling, "n_probs": n_top or 0})
    stops, most = (stop,) if isinstance(stop, str) else tuple(stop), int(limit)
    return Request(
        sampler, most if most > 0 else None, stops, bool(stream), bool(echo), n_top, model
    )


def form_of(response_format: Mapping[str, Any] | None) -> Constraint | None:
    """What an answer must match, of OpenAI's `response_format`."""
    asked = response_format or {"type": "text"}
    schema = asked.get("schema") or asked.get("json_schema", {}).get("schema")
    match asked.get("type"):
        case "text":
            return None
        case "json_object" | "json_schema" if schema is not None:
            return Constraint("json_schema", json.dumps(schema))
        case "json_object":
            return Constraint("json_object")
    raise CompatError(
        f"response_format is {dict(asked)!r:.80}, expected the type text, json_object, or "
        "json_schema with its schema"
    )


def _check(given: Mapping[str, Any], call: str) -> None:
    for name, value in given.items():
        if name not in _NEUTRAL:
            raise CompatError(f"{call}: kvarn has no argument {name!r:.40}")
        if value is not None and not any(value == one for one in _NEUTRAL[name]):
            raise CompatError(f"{call}: {name} is {value!r:.50}, and kvarn has no {name}: omit it")
