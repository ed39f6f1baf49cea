"""For programs that import it from `llama_cpp`, under whose name no relative import works."""

from kvarn.compat.arguments import LlamaGrammar  # noqa: F401
