"""llama.cpp's own tokenizer through llama-cpp-python, and GGUF files of vocabularies for it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import llama_cpp

from ...models.tiny_models import add_metadata, finish

ROLES = ("bos", "eos", "eot", "sep", "pad", "mask")
_FIM = ("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")
_silent = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(_silent, ctypes.c_void_p(0))


def write_vocab(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file with these metadata and no tensors."""
    writer = gguf.GGUFWriter(path, metadata.get("general.architecture", "llama"))
    add_metadata(writer, metadata)
    finish(writer)
    return path


class LlamaVocab:
    """The vocabulary of a GGUF file as llama.cpp reads it."""

    def __init__(self, path: Path) -> None:
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self._model:
            raise ValueError(f"llama.cpp refuses {path}")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)

    def encode(self, raw: bytes, bos: bool = False, special: bool = False) -> list[int]:
        size = 4 * len(raw) + 8
        ids = (llama_cpp.llama_token * size)()
        n = llama_cpp.llama_tokenize(self._vocab, raw, len(raw), ids, size, bos, special)
        assert n >= 0
        return list(ids[:n])

    def decode(self, ids: list[int], special: bool = False) -> bytes:
        tokens = (llama_cpp.llama_token * len(ids))(*ids)
        text = ctypes.create_string_buffer(1024 * len(ids) + 8)
        n = llama_cpp.llama_detokenize(
            self._vocab, tokens, len(ids), text, len(text), False, special
        )
        assert n >= 0
        return text.raw[:n]

    def piece(self, token: int) -> bytes:
        text = ctypes.create_string_buffer(65536)
        n = llama_cpp.llama_token_to_piece(self._vocab, token, text, len(text), 0, True)
        assert n >= 0
        return text.raw[:n]

    def facts(self) -> dict[str, Any]:
        """Roles, ends of generation and what surrounds a text."""
        roles = {r: getattr(llama_cpp, f"llama_vocab_{r}")(self._vocab) for r in ROLES + _FIM}
        ends = range(self.n_vocab)
        return {
            "roles": {role: token for role, token in roles.items() if token >= 0},
            "eog_ids": [i for i in ends if llama_cpp.llama_vocab_is_eog(self._vocab, i)],
            "add_bos": llama_cpp.llama_vocab_get_add_bos(self._vocab),
            "add_eos": llama_cpp.llama_vocab_get_add_eos(self._vocab),
        }

    def close(self) -> None:
        llama_cpp.llama_model_free(self._model)


@contextmanager
def llama_vocab(path: Path) -> Iterator[LlamaVocab]:
    """The vocabulary, freed at the end."""
    vocab = LlamaVocab(path)
    try:
        yield vocab
    finally:
        vocab.close()
