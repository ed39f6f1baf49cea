"""The table of docs/guides/fit.md: `python -m lab.fit` computes it from shapes of known models."""

from __future__ import annotations

from typing import Any

from kvarn.models import ModelConfig
from kvarn.runtime.fitting.sizes import kv_bytes
from kvarn.runtime.memory import human_bytes
from kvarn.system.terminal import show

SHAPES: dict[str, dict[str, Any]] = {
    "1B (Llama 3.2)": {"block_count": 16, "embedding_length": 2048, "feed_forward_length": 8192}
    | {"attention.head_count": 32, "attention.head_count_kv": 8, "attention.key_length": 64},
    "8B (Llama 3.1)": {"block_count": 32, "embedding_length": 4096, "feed_forward_length": 14336}
    | {"attention.head_count": 32, "attention.head_count_kv": 8, "attention.key_length": 128},
    "30B-A3B (Qwen 3)": {"block_count": 48, "embedding_length": 2048, "feed_forward_length": 768}
    | {"attention.head_count": 32, "attention.head_count_kv": 4, "attention.key_length": 128},
}
LENGTHS = {"32K": 1 << 15, "128K": 1 << 17, "1M": 1 << 20}
KV_TYPES = ("f16", "q8_0", "q4_0")


def table() -> str:
    """Bytes of keys and values by model, length and type, in Markdown."""
    rows = [f"| model | tokens | {' | '.join(KV_TYPES)} |", "|---|---:|---:|---:|---:|"]
    for name, keys in SHAPES.items():
        config = ModelConfig.from_metadata(_metadata(keys))
        for length, n in LENGTHS.items():
            sizes = (human_bytes(kv_bytes(config, (kind, kind), n)) for kind in KV_TYPES)
            rows.append(f"| {name} | {length} | {' | '.join(sizes)} |")
    return "\n".join(rows)


def _metadata(keys: dict[str, Any]) -> dict[str, Any]:
    """A llama's of this shape: experts change nothing of keys and values."""
    all_keys = {
        **keys,
        "context_length": 1 << 20,
        "attention.value_length": keys["attention.key_length"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": keys["attention.key_length"],
        "vocab_size": 128_256,
    }
    return {"general.architecture": "llama", **{f"llama.{k}": v for k, v in all_keys.items()}}


if __name__ == "__main__":
    show(table())
