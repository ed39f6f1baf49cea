"""Text to token ids and back, with the vocabulary of a GGUF file.

The ids equal llama.cpp's, for SentencePiece (`llama`), BPE (`gpt2`) and WordPiece (`bert`).
"""

from .control import ControlTexts
from .errors import TokenizerError
from .rendered import Rendered
from .stream import TokenStream
from .tokenizer import Tokenizer, load_tokenizer
from .vocab import Attr

__all__ = [
    "Attr",
    "ControlTexts",
    "Rendered",
    "TokenStream",
    "Tokenizer",
    "TokenizerError",
    "load_tokenizer",
]
