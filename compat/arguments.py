"""Arguments of llama-cpp-python 0.3.36 (`llama_cpp/llama.py`), and which of them kvarn takes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import KvarnError, Ngram
from ..runtime.chat.openai.errors import RequestError, invalid
from ..runtime.draft.base import MOST_TOKENS
from ..runtime.sampling import Constraint
from ..system.reading import MOST_TEXT, read_file
from ..system.spelling import as_argument, use_spelling

KV_TYPES = {None: "f16", 1: "f16", 8: "q8_0", 2: "q4_0"}
"""ggml's numbers of types → kvarn's names."""
_SPELT = {"kv_type": "type_k and type_v, 8 or 2"}  # an option, as messages name it
OF_MODEL = frozenset(
    "n_ctx n_threads seed last_n_tokens_size verbose lora_path lora_scale draft_model "
    "split_mode main_gpu tensor_split use_mmap use_mlock n_batch n_ubatch n_threads_batch "
    "offload_kqv flash_attn op_offload swa_full no_perf numa logits_all embedding f16_kv n_parts "
    "n_gpu_layers local_dir_use_symlinks".split()
)
"""Arguments of a model with any value: most concern speed or memory, and no result."""
_VALUES: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys("chat_format chat_handler tokenizer kv_overrides lora_base".split(), ()),
    **dict.fromkeys("stopping_criteria logits_processor cache_dir device suffix".split(), ()),
    **dict.fromkeys("rope_scaling_type pooling_type attention_type yarn_ext_factor".split(), (-1,)),
    **dict.fromkeys("vocab_only spm_infill yarn_orig_ctx".split(), (0,)),
    **dict.fromkeys("tfs_z yarn_attn_factor yarn_beta_slow".split(), (1,)),
    **dict.fromkeys("functions function_call additional_files".split(), ()),
    **dict.fromkeys("type_k type_v".split(), (1, 8, 2)),
    "yarn_beta_fast": (32,),
    "rope_freq_base": (0, 10000),  # LangChain always sends its own default
    "rope_freq_scale": (0, 1),
    "normalize": (True,),
}
"""Arguments that change results → the values, beside None, that kvarn takes."""


@contextmanager
def value_errors() -> Iterator[None]:
    """Errors of kvarn as `RequestError`, which is a ValueError, as programs expect it here."""
    try:
        with use_spelling(lambda word: _SPELT.get(word) or as_argument(word)):
            yield
    except KvarnError as error:
        raise RequestError(str(error)) from error


def checked(given: Mapping[str, Any], known: Collection[str] | None = None) -> dict[str, Any]:
    """The arguments that are not None. known: their valid names; None: the callee checks them.
    Raises `RequestError` for those that kvarn does not have, or not with their values."""
    for name, values in _VALUES.items():
        if (value := given.get(name)) is not None and value not in values:
            raise invalid(name, value, " or ".join(map(repr, (None, *values))))
    others = {name: x for name, x in given.items() if x is not None and name not in _VALUES}
    if known is not None and (unknown := others.keys() - known):
        raise RequestError(f"there is no argument {min(unknown)!r:.40}")
    return others


class LlamaGrammar(Constraint):
    """A grammar that answers match, in llama.cpp's GBNF or as a JSON schema."""

    @classmethod
    @value_errors()
    def from_string(cls, grammar: str, verbose: bool = True) -> LlamaGrammar:
        """A grammar from GBNF's text."""
        return cls("gbnf", grammar)

    @classmethod
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
