"""Arguments of llama-cpp-python 0.3.36 (`llama_cpp/llama.py`), and which of them kvarn takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..runtime.draft import Ngram
from ..runtime.draft.base import MOST_TOKENS
from ..runtime.sampling import Constraint
from ..system.errors import KvarnError
from ..system.reading import MOST_TEXT, read_file

RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)
KV_TYPES = {None: "f16", 1: "f16", 8: "q8_0", 2: "q4_0"}
"""ggml's numbers of types → kvarn's names."""
OF_SPEED = frozenset(
    "split_mode main_gpu tensor_split use_mmap use_mlock n_batch n_ubatch n_threads_batch "
    "offload_kqv flash_attn op_offload swa_full no_perf numa logits_all embedding f16_kv n_parts "
    "n_gpu_layers".split()
)
"""Arguments of a model that concern speed, memory or what may be asked, and no result."""
_VALUES: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys("chat_format chat_handler tokenizer kv_overrides lora_base".split(), ()),
    **dict.fromkeys("stopping_criteria logits_processor cache_dir".split(), ()),
    **dict.fromkeys("rope_scaling_type pooling_type attention_type yarn_ext_factor".split(), (-1,)),
    **dict.fromkeys("vocab_only spm_infill yarn_orig_ctx".split(), (0,)),
    **dict.fromkeys("tfs_z yarn_attn_factor yarn_beta_slow".split(), (1,)),
    **dict.fromkeys("functions additional_files".split(), ([],)),
    **dict.fromkeys("type_k type_v".split(), (1, 8, 2)),
    "yarn_beta_fast": (32,),
    "rope_freq_base": (0, 10000),  # LangChain always sends its own default
    "rope_freq_scale": (0, 1),
    "normalize": (True,),
    "device": ("cpu",),
    "suffix": ("",),
    "function_call": ("none",),
    "local_dir_use_symlinks": ("auto",),
}
"""Arguments that change results → the values, beside None, that kvarn takes."""


class CompatError(KvarnError, ValueError):
    """An argument of llama-cpp-python that kvarn does not have, or not with this value."""


@contextmanager
def value_errors() -> Iterator[None]:
    """Errors of kvarn as `CompatError`, which is a ValueError, as programs expect it here."""
    try:
        yield
    except KvarnError as error:
        raise CompatError(in_arguments(str(error))) from error


def in_arguments(message: str) -> str:
    """A message about a context, with arguments in the place of the command line's options."""
    kinds = "type_k and type_v (8, 2)"
    return message.replace("--ctx", "n_ctx").replace("--kv-type (q8_0, q4_0)", kinds)


def refusal(call: str, name: str, value: object, expected: str) -> CompatError:
    """The error for an argument's value."""
    return CompatError(f"{call}: {name} is {value!r:.80}, expected {expected}")


def check(call: str, given: Mapping[str, Any], but: Collection[str] = ()) -> None:
    """Raises `CompatError` for arguments that kvarn does not have, or not with their values."""
    for name in (name for name in given if name not in but):
        if name not in _VALUES:
            raise CompatError(f"{call}: kvarn has no argument {name!r:.40}")
        value, values = given[name], _VALUES[name]
        if value is not None and value not in values:
            raise refusal(call, name, value, " or ".join(map(repr, (None, *values))))


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
