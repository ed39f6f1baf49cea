"""Arguments of llama-cpp-python's `Llama`: which kvarn takes, which change nothing, which it lacks.

Source: llama-cpp-python 0.3.36, `llama_cpp/llama.py`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

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
    "device": (None, "cpu"),
    "vocab_only": (False,),
    "kv_overrides": (None,),
    "rope_scaling_type": (None, -1),
    "pooling_type": (None, -1),
    "attention_type": (None, -1),
    "rope_freq_base": (None, 0.0, 10000.0),  # LangChain always sends its own default
    "rope_freq_scale": (None, 0.0, 1.0),
    "yarn_ext_factor": (None, -1.0),
    "yarn_attn_factor": (None, 1.0),
    "yarn_beta_fast": (None, 32.0),
    "yarn_beta_slow": (None, 1.0),
    "yarn_orig_ctx": (None, 0),
    "lora_base": (None,),
    "lora_scale": (None, 1.0),
    "lora_path": (None,),
    "chat_format": (None,),
    "chat_handler": (None,),
    "draft_model": (None,),
    "tokenizer": (None,),
    "spm_infill": (None, False),
}
"""Arguments of a model that change results → the values with which they do not."""
_NEUTRAL_ASKED: Mapping[str, tuple[Any, ...]] = {
    "suffix": (None, ""),
    "tfs_z": (None, 1.0),
    "stopping_criteria": (None,),
    "logits_processor": (None,),
    "functions": (None, []),
    "function_call": (None, "none"),
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


class LlamaGrammar:
    """A grammar that answers match, in llama.cpp's GBNF or as a JSON schema."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """Of GBNF's text."""
        with value_errors():
            return cls(Constraint("gbnf", grammar))

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> LlamaGrammar:
        """Of a file of GBNF."""
        with value_errors():
            return cls.from_string(read_file(Path(file), MOST_TEXT).decode("utf-8", "replace"))

    @classmethod
    def from_json_schema(cls, json_schema: str, verbose: bool = True) -> LlamaGrammar:
        """Of a JSON schema's text."""
        with value_errors():
            return cls(Constraint("json_schema", json_schema))


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
    options = dict(options)
    layers = options.pop("n_gpu_layers", 0)
    if layers not in (None, 0):
        warnings.warn(
            f"n_gpu_layers is {layers}: kvarn.compat.Llama computes on the CPU", stacklevel=3
        )
    _check({k: v for k, v in options.items() if k not in _FREE}, _NEUTRAL, "Llama")


def wanted(options: Mapping[str, Any], defaults: Mapping[str, Any], call: str) -> Wanted:
    """The arguments of a request. defaults: options of `Sampler`.

    Raises `CompatError` for one that kvarn does not have, and for a value that is none.
    """
    left = dict(options)
    sampling = {
        option: value
        for name, option in _SAMPLING.items()
        if (value := left.pop(name, None)) is not None
    }
    grammar, limit, stop = (
        left.pop("grammar", None),
        left.pop("max_tokens", None),
        left.pop("stop", None),
    )
    logprobs, n_top = left.pop("logprobs", None), left.pop("top_logprobs", None)
    stream, echo, name = left.pop("stream", False), left.pop("echo", False), left.pop("model", None)
    _check(left, _NEUTRAL_ASKED, call)
    if grammar is not None:
        if not isinstance(grammar, LlamaGrammar):
            raise CompatError(f"{call}: grammar is {grammar!r:.50}, expected a LlamaGrammar")
        sampling["constraint"] = grammar.constraint
    if sampling.get("seed") in RANDOM_SEEDS:
        sampling.pop("seed", None)
    if bias := sampling.get("logit_bias"):
        sampling["logit_bias"] = {int(token): value for token, value in bias.items()}
    if logprobs in (None, False):
        n_top = None
    elif logprobs is not True:
        n_top = logprobs
    with value_errors():
        sampler = Sampler(**{**defaults, **sampling})
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    most = None if limit is None or limit <= 0 else int(limit)
    return Wanted(sampler, most, stops, bool(stream), bool(echo), n_top, name)


def form_of(response_format: Mapping[str, Any] | None) -> Constraint | None:
    """What an answer must match, of OpenAI's `response_format`."""
    if response_format is None or response_format.get("type") == "text":
        return None
    schema = response_format.get("schema") or response_format.get("json_schema", {}).get("schema")
    kind = response_format.get("type")
    if kind not in ("json_object", "json_schema") or (kind == "json_schema" and schema is None):
        raise CompatError(
            f"response_format is {dict(response_format)!r:.80}, expected the type text, "
            "json_object, or json_schema with its schema"
        )
    with value_errors():
        if schema is None:
            return Constraint("json_object")
        return Constraint("json_schema", json.dumps(schema))


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """OpenAI's messages as chat templates take them. Raises `CompatError` for images."""
    return [_message(one, f"messages[{i}]") for i, one in enumerate(messages)]


def _message(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    made = {k: v for k, v in message.items() if v is not None}
    made["role"] = {"developer": "system", "function": "tool"}.get(made["role"], made["role"])
    content = made.get("content", "")
    if not isinstance(content, str):
        for part in content:
            if part.get("type") != "text":
                raise CompatError(f"{path} has a part of type {part.get('type')!r:.40}, not text")
        content = "\n".join(part["text"] for part in content)
    made["content"] = content
    if calls := made.pop("tool_calls", None):
        made["tool_calls"] = [_call(call) for call in calls]
    return made


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError:
            function["arguments"] = {"arguments": function["arguments"]}
    return {**call, "function": function}


def _check(given: Mapping[str, Any], known: Mapping[str, tuple[Any, ...]], call: str) -> None:
    for name, value in given.items():
        if name not in known:
            raise CompatError(f"{call}: kvarn has no argument {name!r:.40}")
        if not any(value is one or value == one for one in known[name]):
            raise CompatError(f"{call}: {name} is {value!r:.50}, and kvarn has no {name}: omit it")
