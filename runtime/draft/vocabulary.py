"""Whether two models have one vocabulary, read from their files: nothing else is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...system.text import brief, one_line
from .base import DraftError

if TYPE_CHECKING:
    from ..gguf import GGUFFile

_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_UNUSED = 5
"""llama.cpp's type of tokens that only pad a vocabulary."""


def check_vocabulary(draft: GGUFFile, model: GGUFFile) -> None:
    """Raises `DraftError` unless each token has the same text in both files.

    One vocabulary may be longer by tokens of type "unused": models of one family and several sizes
    are padded to different multiples.
    """
    texts, others = _texts(draft), _texts(model)
    n = min(len(texts), len(others))
    name, other = one_line(draft.path.name), one_line(model.path.name)
    if texts[:n] != others[:n]:
        i = next(i for i in range(n) if texts[i] != others[i])
        raise DraftError(
            f"the draft {name} has another vocabulary than {other}: found {brief(texts[i])} as "
            f"token {i}, expected {brief(others[i])}: use a smaller model of the same family"
        )
    longer = draft if len(texts) > n else model
    types = longer.metadata.get(_TYPES) if len(texts) != len(others) else np.empty(0)
    if not isinstance(types, np.ndarray) or (types[n:] != _UNUSED).any():
        raise DraftError(
            f"the draft {name} has another vocabulary than {other}: found {len(texts):,} tokens, "
            f"expected {len(others):,}: use a smaller model of the same family"
        )


def _texts(file: GGUFFile) -> list[str]:
    texts = file.metadata.get(_TOKENS)
    if not isinstance(texts, list):
        raise DraftError(
            f"drafting needs the texts of all tokens: {one_line(file.path.name)} has none"
        )
    return texts
