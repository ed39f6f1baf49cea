"""kvarn: a GGUF runtime for contexts that do not fit in memory.

    import kvarn
    model = kvarn.load("model.gguf")
    context = model.context(8192)
    print("".join(context.generate("Once upon a time", max_tokens=64)))

Names are imported on first use, so that `import kvarn` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runtime.attend import Full, Hash, TopK
    from .runtime.context import Context
    from .runtime.draft import Ngram
    from .runtime.gguf import open_gguf
    from .runtime.keep import HashEvict, KeepAll, Streaming
    from .runtime.load import load
    from .runtime.model import Model
    from .runtime.sampling import Sampler
    from .runtime.store import Disk, Ram
    from .runtime.tokenizer import load_tokenizer
    from .system.errors import KvarnError

__version__ = "0.1.0"

_HOMES = {
    "Context": ".runtime.context",
    "Disk": ".runtime.store",
    "Full": ".runtime.attend",
    "Hash": ".runtime.attend",
    "HashEvict": ".runtime.keep",
    "KeepAll": ".runtime.keep",
    "KvarnError": ".system.errors",
    "Model": ".runtime.model",
    "Ngram": ".runtime.draft",
    "Ram": ".runtime.store",
    "TopK": ".runtime.attend",
    "Sampler": ".runtime.sampling",
    "Streaming": ".runtime.keep",
    "load": ".runtime.load",
    "load_tokenizer": ".runtime.tokenizer",
    "open_gguf": ".runtime.gguf",
}

__all__ = [
    "Context",
    "Disk",
    "Full",
    "Hash",
    "HashEvict",
    "KeepAll",
    "KvarnError",
    "Model",
    "Ngram",
    "Ram",
    "Sampler",
    "Streaming",
    "TopK",
    "load",
    "load_tokenizer",
    "open_gguf",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvarn' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
