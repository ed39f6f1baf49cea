"""Arguments of llama-cpp-python's `Llama`: which kvarn takes, which change nothing, which it lacks.

Source: llama-cpp-python 0.3.36, `llama_cpp/llama.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..runtime.draft import Draft, Ngram
from ..runtime.sampling import Constraint, Sampler
from ..system.errors import KvarnError
from ..system.reading import MOST_TEXT, read_file

RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)
KV_TYPES = {None: "f16", 1: "f16", 8: "q8_0", 2: "q4_0"}
"""ggml's numbers of types → kvarn's names."""
_FREE = frozenset(
    "split_mode main_gpu tensor_split use_mmap use_mlock n_batch n_ubatch n_threads_batch "
    "offload_kqv flash_attn op_offload swa_full no_perf numa logits_all embedding f16_kv n_parts"
    .split()
)  # fmt: skip
"""Arguments of a model that concern speed, memory or what may be asked, and no result."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys("chat_format chat_handler tokenizer kv_overrides lora_base".split(), ()),
    **dict.fromkeys("rope_scaling_type pooling_type attention_type".split(), (-1,)),
    "device": ("cpu",),
    "vocab_only": (False,),
    "spm_infill": (False,),
    "rope_freq_base": (0.0, 10000.0),  # LangChain always sends its own default
    "rope_freq_scale": (0.0, 1.0),
    "yarn_ext_factor": (-1.0,),
    "yarn_attn_factor": (1.0,),
    "yarn_beta_fast": (32.0,),
    "yarn_beta_slow": (1.0,),
    "yarn_orig_ctx": (0,),
}
"""Arguments of a model that change results → the values, beside None, with which they do not."""
_NEUTRAL_ASKED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys("stopping_criteria logits_processor".split(), ()),
    "suffix": ("",),
    "tfs_z": (1.0,),
    "functions": ([],),
    "function_call": ("none",),
}
_SAMPLING = {"temperature": "temp", "mirostat_mode": "mirostat"} | {
    field.name: field.name
    for field in fields(Sampler)
    if field.name not in ("temp", "mirostat", "constraint", "n_probs")
}
"""Argument of a request → option of `Sampler`."""


class CompatError(KvarnError, ValueError):
    """An argument of llama-cpp-python that kvarn does not have, or not with this value."""


@contextmanager
def value_errors() -> Iterator[None]:
    """Errors of kvarn as `CompatError`, which is a ValueError, as programs expect it here."""
    try:
        yield
    except CompatError:
        raise
    except KvarnError as error:
        raise CompatError(str(error)) from error


@dataclass(frozen=True)
class LlamaGrammar:
    """A grammar that answers match, in llama.cpp's GBNF or as a JSON schema."""

    constraint: Constraint

    @classmethod
    @value_errors()
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar from GBNF's text."""
        return cls(Constraint("gbnf", grammar))

    @classmethod
    @value_errors()
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """A grammar from a file of GBNF."""
        return cls.from_string(read_file(Path(file), MOST_TEXT).decode("utf-8", "replace"))

    @classmethod
    @value_errors()
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar from a JSON schema's text."""
        return cls(Constraint("json_schema", json_schema))


class LlamaPromptLookupDecoding(Ngram):
    """Prompt look-up, as `kvarn.Ngram` does it: a draft of at most `num_pred_tokens` tokens."""

    @value_errors()
    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        super().__init__(max_tokens=num_pred_tokens)


@dataclass(frozen=True)
class Wanted:
    """How one answer is made. n_top: log probabilities of each token and of so many others; None:
    none. name: what the response calls the model."""

    sampler: Sampler
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    echo: bool
    n_top: int | None
    name: str | None


def check_model_arguments(options: Mapping[str, Any]) -> None:
    """Raises `CompatError` for arguments of a model that kvarn does not have."""
    if (layers := options.get("n_gpu_layers")) not in (None, 0):
        warnings.warn(
            f"n_gpu_layers is {layers}: kvarn.compat.Llama computes on the CPU", stacklevel=3
        )
    left = {k: v for k, v in options.items() if k not in _FREE and k != "n_gpu_layers"}
    _check(left, _NEUTRAL, "Llama")


def draft_of(draft_model: Any) -> Draft | None:
    """The argument `draft_model`. Raises `CompatError` for what is no draft of kvarn."""
    if draft_model is not None and not isinstance(draft_model, Draft):
        raise CompatError(
            f"Llama: draft_model is {draft_model!r:.50}, expected a LlamaPromptLookupDecoding or a "
            "kvarn.DraftModel"
        )
    return draft_model


def wanted(options: Mapping[str, Any], defaults: Mapping[str, Any], call: str) -> Wanted:
    """The arguments of a request. defaults: options of `Sampler`.

    Raises `CompatError` for one that kvarn does not have, and for a value that is none.
    """
    left = {name: value for name, value in options.items() if value is not None}
    sampling = {option: left.pop(name) for name, option in _SAMPLING.items() if name in left}
    limit, stop = left.pop("max_tokens", 0), left.pop("stop", ())
    logprobs, n_top = left.pop("logprobs", False), left.pop("top_logprobs", 0)
    stream, echo, name = (left.pop(name, None) for name in ("stream", "echo", "model"))
    if (grammar := left.pop("grammar", None)) is not None:
        if not isinstance(grammar, LlamaGrammar):
            raise CompatError(f"{call}: grammar is {grammar!r:.50}, expected a LlamaGrammar")
        sampling["constraint"] = grammar.constraint
    _check(left, _NEUTRAL_ASKED, call)
    if sampling.get("seed") in RANDOM_SEEDS:
        sampling.pop("seed", None)
    if bias := sampling.get("logit_bias"):
        sampling["logit_bias"] = {int(token): value for token, value in bias.items()}
    top = None if logprobs is False else n_top if logprobs is True else logprobs
    with value_errors():
        sampler = Sampler(**{**defaults, **sampling, "n_probs": top or 0})
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    most = int(limit) if limit > 0 else None
    return Wanted(sampler, most, stops, bool(stream), bool(echo), top, name)


def _check(given: Mapping[str, Any], known: Mapping[str, tuple[Any, ...]], call: str) -> None:
    for name, value in given.items():
        if name not in known:
            raise CompatError(f"{call}: kvarn has no argument {name!r:.40}")
        if value is not None and not any(value == one for one in known[name]):
            raise CompatError(f"{call}: {name} is {value!r:.50}, and kvarn has no {name}: omit it")
