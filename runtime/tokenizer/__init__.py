"""Text to token ids and back, with the vocabulary of a GGUF file.

The ids equal llama.cpp's, for SentencePiece (`llama` by merges, `t5` by unigrams), BPE (`gpt2`) and
WordPiece (`bert`).

Not by the library tokenizers: it has no BPE by scores, and its regular expressions have another
version of Unicode and not llama.cpp's simplifications. To give it 128,000 tokens and 280,000 merges
takes 0.7 s at each start; kvarn reads such a vocabulary in 0.2 s, and the merges when needed.
"""

from .rendered import ControlTexts as ControlTexts
from .rendered import Rendered as Rendered
from .tokenizer import Tokenizer as Tokenizer
from .tokenizer import TokenStream as TokenStream
from .tokenizer import load_tokenizer as load_tokenizer
from .vocab import Attr as Attr
from .vocab import TokenizerError as TokenizerError
