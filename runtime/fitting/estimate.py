"""What a model, a context and a method take together, and what to choose where that is too much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from ...models.config import ModelConfig
from ..attend import Full
from ..loading.adapters import load_adapters
from ..store.base import types_text
from ..store.ram.factory import SPARE
from . import sizes
from .sizes import WeightBytes

if TYPE_CHECKING:
    from ..attend import Attend
    from ..draft.request import DraftRequest
    from ..gguf import GGUFFile
    from ..loading.adapter_files import AdapterFile
    from .speed import Speeds

KV_TYPES = ("f16", "q8_0", "q4_0")
_LONG = 8192
"""Tokens from which a method that chooses is worth its price (`--method auto`)."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of memory and disk. n_ctx_train: tokens that the model was trained on. weight_type: of
    most weights; n_weights: those that a token multiplies; token_kv: bytes of K, V and index that a
    token reads at the end of the context. adapter_bytes: of low-rank adapters. draft_bytes: of a
    model that drafts, and its context."""

    name: str
    architecture: str
    n_ctx: int
    n_ctx_train: int
    kv: tuple[str, str]
    method: str
    weights: WeightBytes
    kv_bytes: int
    index_bytes: int
    state_bytes: int
    buffer_bytes: int
    disk_bytes: int
    weight_type: str
    n_weights: int
    token_kv: int
    adapter_bytes: int = 0
    draft_bytes: int = 0

    @property
    def context_bytes(self) -> int:
        """Memory of the context."""
        return self.kv_bytes + self.index_bytes + self.state_bytes + self.buffer_bytes

    @property
    def memory_bytes(self) -> int:
        """Memory of all."""
        beside = self.adapter_bytes + self.draft_bytes
        return self.weights.resident + self.context_bytes + beside

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        facts = asdict(self) | {"kv": types_text(*self.kv)}
        facts["weights"] |= {"resident": self.weights.resident}
        return facts | {"context_bytes": self.context_bytes, "memory_bytes": self.memory_bytes}


def estimate(file: GGUFFile, n_ctx: int | None, kv: tuple[str, str], attend: Attend) -> Estimate:
    """What a context of `n_ctx` tokens (None: the model's training length) takes.

    Raises `ModelError` for a model that kvarn does not run, `KvarnError` for a method whose index
    has a size that depends on what is read.
    """
    config = ModelConfig.from_metadata(file.metadata)
    n_ctx = n_ctx or config.n_ctx_train
    items = sizes.index_items(file, config, attend, n_ctx)
    weights = sizes.weight_bytes(file.tensors, config)
    n_kv, n_index = sizes.kv_bytes(config, kv, n_ctx), sizes.index_bytes(config, items, n_ctx)
    n_bytes = sum(tensor.data.nbytes for tensor in file.tensors.values())
    read = n_kv
    if items:
        budget = getattr(attend, "budget", None)
        group = config.n_heads // config.n_kv_heads
        shared = 1 if getattr(attend, "budget_unit", "") == "kv-head" else group
        chosen = 0 if budget is None else budget.tokens(n_ctx) * shared
        always = getattr(attend, "sink", 0) + getattr(attend, "window", 0)
        read = round(n_index + n_kv * min(1.0, (chosen + always) / n_ctx))
    return Estimate(
        name=file.path.name,
        architecture=config.architecture.name,
        n_ctx=n_ctx,
        n_ctx_train=config.n_ctx_train,
        kv=kv,
        method=attend.name,
        weights=weights,
        kv_bytes=n_kv,
        index_bytes=n_index,
        state_bytes=sizes.state_bytes(config, n_ctx),
        buffer_bytes=sizes.buffer_bytes(config, kv, n_ctx),
        disk_bytes=sizes.disk_bytes(config, kv, items, n_ctx),
        weight_type=file.weight_type,
        n_weights=round(file.n_parameters * weights.per_token / max(1, n_bytes)),
        token_kv=read,
    )


def with_beside(
    asked: Estimate, file: GGUFFile, lora: Sequence[AdapterFile], draft: DraftRequest | None
) -> Estimate:
    """The estimate with the adapters, which are read, and the draft of the model in `file`.

    Raises `AdapterError` and `DraftError` for those of another model.
    """
    n_draft = 0
    if draft is not None and draft.file is not None:
        draft.check(file.path)
        n_train = ModelConfig.from_metadata(draft.file.metadata).n_ctx_train
        n_ctx = min(asked.n_ctx, n_train)
        n_draft = estimate(draft.file, n_ctx, ("f16", "f16"), Full()).memory_bytes
    n_bytes = load_adapters(file, lora).n_bytes
    return replace(asked, adapter_bytes=n_bytes, draft_bytes=n_draft)


def advice(
    file: GGUFFile, asked: Estimate, attend: Attend, memory: int, disk: int
) -> tuple[str, list[str]]:
    """A line of what to choose for so many bytes of memory and disk, and the words of the command
    for it after `kvarn run`: for at most as many tokens as the model was trained on."""
    line, words = _choice(file, asked, attend, memory, disk)
    n_train = asked.n_ctx_train
    if words and int(words[2]) > n_train:
        line += f", but the model was trained on {n_train:,} tokens: the command is for those"
        fewer, words = _choice(file, replace(asked, n_ctx=n_train), attend, memory, disk)
        line += f" ({fewer})"
    return line, words


def _choice(
    file: GGUFFile, asked: Estimate, attend: Attend, memory: int, disk: int
) -> tuple[str, list[str]]:
    """What `advice` says, whatever the model was trained on."""
    most = memory * (1 - SPARE) - asked.adapter_bytes - asked.draft_bytes
    words = [str(file.path), "--ctx", str(asked.n_ctx)]
    long = asked.method == "full" and asked.n_ctx > _LONG
    method = ["--method", "auto" if long else asked.method]
    types = [asked.kv, *((t, t) for t in KV_TYPES[1:] if (t, t) != asked.kv)]
    for kv in types:
        if estimate(file, asked.n_ctx, kv, attend).memory_bytes <= most:
            fits = "it fits" if kv == asked.kv else f"it fits with --kv-type {types_text(*kv)}"
            few = ", and auto makes long contexts faster" if long else ""
            return fits + few, [*words, "--kv-type", types_text(*kv), *method]
    q8_0 = ("q8_0", "q8_0")
    on_disk = estimate(file, asked.n_ctx, q8_0, attend)
    if on_disk.disk_bytes <= disk and on_disk.weights.resident <= most:
        line = "memory does not hold the KV cache: keep it on disk, and let tokens choose"
        return line, [*words, "--kv-type", "q8_0", *method, "--kv", "DIR"]
    room = most - asked.weights.resident - asked.state_bytes - asked.buffer_bytes
    config, small = ModelConfig.from_metadata(file.metadata), ("q4_0", "q4_0")
    n, n_small = (sizes.tokens_in(config, kv, int(room)) for kv in (asked.kv, small))
    if n_small <= 0:
        return "the weights alone do not fit: use a smaller model, or one of fewer bits", []
    words[2] = str(n_small)
    more = "" if asked.kv == small else f", or {n_small:,} with --kv-type q4_0"
    return f"at most {n:,} tokens fit{more}", [*words, "--kv-type", "q4_0", *method]


def predicted(file: GGUFFile, asked: Estimate, measured: Speeds) -> dict[str, float]:
    """Seconds to read a prompt that fills the context, and tokens per second after it."""
    config = ModelConfig.from_metadata(file.metadata)
    n_bytes = asked.weights.per_token + asked.adapter_bytes
    return {
        "prompt_seconds": measured.prompt_seconds(config, asked.n_weights, asked.n_ctx),
        "tokens_per_second": 1 / measured.token_seconds(n_bytes, max(1, asked.token_kv)),
    }
