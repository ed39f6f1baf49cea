"""Text to token ids and back, from the vocabulary that a GGUF file carries.

The ids are llama.cpp's: SentencePiece (`llama`), BPE (`gpt2`) and WordPiece (`bert`) vocabularies.
"""

from .errors import TokenizerError
from .stream import TokenStream
from .tokenizer import Tokenizer, load_tokenizer
from .vocab import Attr

__all__ = ["Attr", "TokenStream", "Tokenizer", "TokenizerError", "load_tokenizer"]
