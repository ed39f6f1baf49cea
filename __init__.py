"""kvarn: a GGUF runtime for contexts that do not fit in memory.

    import kvarn
    model = kvarn.load("model.gguf")
    context = model.context(8192)
    print("".join(context.generate("Once upon a time", max_tokens=64)))

Names are imported on first use, so that `import kvarn` costs nothing. The methods of the four axes
(`kvarn.Disk`, `kvarn.HashEvict`, `kvarn.TopK` …) are those of their registries.
"""
# ruff: noqa: F403 - what is imported here is exported

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jit.kernel_cache import on_compile as on_compile
    from .runtime.attend.registry import *
    from .runtime.axes import register as register
    from .runtime.chat.conversation import Conversation as Conversation
    from .runtime.chat.openai.completions import Completions as Completions
    from .runtime.context import Context as Context
    from .runtime.draft import DraftModel as DraftModel
    from .runtime.draft import Ngram as Ngram
    from .runtime.embedding import Embedder as Embedder
    from .runtime.embedding.loading import load_embedder as load_embedder
    from .runtime.gguf import open_gguf as open_gguf
    from .runtime.keep.registry import *
    from .runtime.loading.load import load as load
    from .runtime.model import Model as Model
    from .runtime.packs.asking import ask as ask
    from .runtime.packs.blocks import build_pack_in_blocks as build_pack_in_blocks
    from .runtime.packs.pack import build_pack as build_pack
    from .runtime.packs.ranking import ask_packs as ask_packs
    from .runtime.packs.texts import build_packs as build_packs
    from .runtime.prefill.registry import *
    from .runtime.sampling import Sampler as Sampler
    from .runtime.shards import Sharded as Sharded
    from .runtime.shards import Shards as Shards
    from .runtime.store.registry import *
    from .runtime.tokenizer import load_tokenizer as load_tokenizer
    from .system.errors import KvarnError as KvarnError

__version__ = "0.2.0"

_HOMES = {
    "Completions": ".runtime.chat.openai.completions",
    "Context": ".runtime.context",
    "Conversation": ".runtime.chat.conversation",
    "DraftModel": ".runtime.draft",
    "Embedder": ".runtime.embedding",
    "KvarnError": ".system.errors",
    "Model": ".runtime.model",
    "Ngram": ".runtime.draft",
    "Sampler": ".runtime.sampling",
    "Sharded": ".runtime.shards",
    "Shards": ".runtime.shards",
    "ask": ".runtime.packs.asking",
    "ask_packs": ".runtime.packs.ranking",
    "build_pack": ".runtime.packs.pack",
    "build_pack_in_blocks": ".runtime.packs.blocks",
    "build_packs": ".runtime.packs.texts",
    "load": ".runtime.loading.load",
    "load_embedder": ".runtime.embedding.loading",
    "load_tokenizer": ".runtime.tokenizer",
    "on_compile": ".jit.kernel_cache",
    "open_gguf": ".runtime.gguf",
    "register": ".runtime.axes",
}
_REGISTRIES = {
    ".runtime.attend.registry": "ATTENDS",
    ".runtime.keep.registry": "KEEPS",
    ".runtime.prefill.registry": "PREFILLS",
    ".runtime.store.registry": "STORES",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted([*_HOMES, *_methods()])
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    if name[:1].isupper() and name in (methods := _methods()):
        return methods[name]
    raise AttributeError(f"module 'kvarn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_methods()])


def _methods() -> dict[str, Any]:
    """The methods of all axes by the names of their classes."""
    return {
        method.__name__: method
        for module, registry in _REGISTRIES.items()
        for method in getattr(import_module(module, __name__), registry).values()
    }
