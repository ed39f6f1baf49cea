"""What stores, keep and attend methods may know of a model: its file and sizes, no weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import xxhash

from ...jit import kernel_cache
from ...jit.kernel_cache import sources
from ...models.config import ModelConfig
from ...ops.arrays import F32
from ...system.text import one_line
from ..gguf import GGUFFile
from .adapter_files import AdapterFacts
from .fingerprint import fingerprint, tokenizer_digest

T = TypeVar("T")

_BASE = {"base", "pretrained"}
_TUNED = {"chat", "instruct", "it", "sft", "dpo", "assistant"}


@dataclass(frozen=True)
class ModelInfo:
    """What is known of one loaded model.

    sink_logits: of each layer with attention (`AttentionConfig.sinks`).
    tell: shows the user a line. measure_keys, measure_queries: have the model read tokens, see
    `context.measuring`. memory: results of `once`.
    """

    file: GGUFFile
    config: ModelConfig
    tell: Callable[[str], None]
    measure_keys: Callable[[], F32]
    measure_queries: Callable[[], F32]
    sink_logits: tuple[F32 | None, ...]
    memory: dict[Callable[[GGUFFile], Any], Any]
    adapters: tuple[AdapterFacts, ...] = ()
    """The adapters that are added to it."""

    def once(self, compute: Callable[[GGUFFile], T]) -> T:
        """The result of compute(file), which is called only the first time."""
        if compute not in self.memory:
            self.memory[compute] = compute(self.file)
        return cast(T, self.memory[compute])

    def measured(self, kind: str, measure: Callable[[], F32], purpose: str) -> F32:
        """measure(), float32 (layers, J, E), if this machine has not done so before.

        It is kept in the kernel cache, as `KIND-FINGERPRINT-<digest of all kernels' sources>`:
        float32, little-endian. purpose: of a line that tells of it.
        """
        config = self.config
        shape = config.n_kv_layers, config.n_kv_heads, config.head_dim
        model = "-".join((self.fingerprint, *filter(None, [self._adapters_digest])))
        name = f"{kind}-{model}-{sources.digest(sources.ALL)}.means"

        def parse(data: bytes) -> F32:
            if len(data) != 4 * prod(shape):
                raise kernel_cache.Damaged(f"{name}: expected {prod(shape)} numbers")
            return np.frombuffer(data, "<f4").astype(np.float32).reshape(shape)

        if (known := kernel_cache.find(name, parse)) is not None:
            return known
        self.tell(f"measuring the {kind} of {self.name}, {purpose} (first use on this machine)")
        means = measure()
        kernel_cache.keep(name, means.astype("<f4").tobytes())
        return means

    @property
    def _adapters_digest(self) -> str:
        """The digest of all adapters and their scales; "" without any."""
        facts = [(adapter.digest, float(adapter.scale)) for adapter in self.adapters]
        return xxhash.xxh3_64_hexdigest(repr(facts).encode()) if facts else ""

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def name(self) -> str:
        """`general.name`, or the file's name if there is none, as `one_line` writes it."""
        return name_of(self.file)

    @property
    def is_base(self) -> bool:
        """Whether the file says that the model only learnt to continue texts: "base" or
        "pretrained" is a word of its name or `general.finetune`, or a tag."""
        name, finetune, tags = (
            self.file.metadata.get(f"general.{key}") for key in ("name", "finetune", "tags")
        )
        words = set(re.split(r"[\W_]+", f"{name} {finetune}".lower()))
        words.update(str(tag).lower() for tag in (tags if isinstance(tags, list) else []))
        return bool(words & _BASE) and not words & _TUNED

    @property
    def fingerprint(self) -> str:
        """See `fingerprint.fingerprint`."""
        return self.once(fingerprint)

    @property
    def tokenizer_digest(self) -> str:
        """See `fingerprint.tokenizer_digest`."""
        return self.once(tokenizer_digest)


def name_of(file: GGUFFile) -> str:
    """`general.name`, or the file's name if there is none, as `one_line` writes it."""
    name = file.metadata.get("general.name")
    return one_line(name if isinstance(name, str) and name else file.path.stem, 300)
