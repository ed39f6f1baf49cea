"""Classes of other libraries, on kvarn's models: `kvarn.compat.Llama` is llama-cpp-python's.

`kvarn.compat` can stand in for the module: `sys.modules["llama_cpp"] = kvarn.compat`.
"""

from ..runtime.chat.openai.errors import RequestError as RequestError
from .arguments import LlamaGrammar as LlamaGrammar
from .arguments import LlamaPromptLookupDecoding as LlamaPromptLookupDecoding
from .llama import Llama as Llama
