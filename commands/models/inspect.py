"""`kvarn inspect`: what a GGUF file holds and what kvarn will do with it."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...models.config import ModelConfig
from ...models.config.architectures import ARCHITECTURES, TEXT_ENCODERS
from ...models.config.text_encoders import TextEncoderConfig
from ...runtime.attend.encoders.sidecar import Description
from ...runtime.gguf import open_gguf
from ...runtime.memory import human_bytes
from ...system.errors import KvarnError
from ...system.terminal import show, show_json
from ...system.text import brief
from ..terminal.tables import columns

if TYPE_CHECKING:
    from ...runtime.gguf import GGUFFile
    from ...runtime.gguf.tensors import Tensor

# Longer arrays and strings are abbreviated: to so many values in JSON; text shows what fits a line.
_WHOLE_ARRAY = 16
_WHOLE_STRING = 1 << 20  # bytes
_FIRST_CHARACTERS = 256
_FIRST_VALUES = 8
_VALUE_WIDTH = 56

_LACKING = {
    "attn_kv_a": "latent attention",
    "indexer": "attention with an indexer",
    "ssm_d": "state space layers (Mamba)",
    "time_mix": "the recurrence of RWKV",
    "attn_rel_b": "relative positions",
    "position_embd": "learned positions",
    "altup": "alternating updates (Gemma 3n)",
    "enc.": "an encoder",
    "v.": "the encoder of images",
}
"""Parts of tensors' names, and what kvarn lacks where a file has such tensors."""

_TREATMENTS = {
    "native": "kernels read the file's bytes",
    "repacked": "repacked when loading",
    "re-encoded": "re-encoded as Q8_0 when loading",
    "unsupported": "kvarn can neither run nor convert it",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a GGUF file's metadata and tensors, and what kvarn will do with them."
    )
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="a GGUF file, or any shard of a split one"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    with open_gguf(options.file) as file:
        description = describe(file)
    if options.json:
        show_json(description)
    else:
        show(render(description))
    return 0


def describe(file: GGUFFile) -> dict[str, Any]:
    """All that `inspect` shows, as the object that `--json` prints."""
    tensors = [
        {
            "name": tensor.name,
            "type": tensor.type.name,
            "shape": list(tensor.shape),
            "n_parameters": tensor.n_elements,
            "n_bytes": tensor.n_bytes,
            "treatment": _treatment(tensor),
        }
        for tensor in file.tensors.values()
    ]
    supported, reason = _support(file)
    two_sets = supported and "rope_factors_long.weight" in file.tensors
    short = ModelConfig.from_metadata(file.metadata).n_ctx_orig if two_sets else None
    n_tensor_bytes = sum(tensor.n_bytes for tensor in file.tensors.values())
    return {
        "file": str(file.path),
        "files": [path.name for path in file.paths],
        "version": file.version,
        "alignment": file.alignment,
        "n_bytes": file.n_bytes,
        "architecture": file.get("general.architecture", str, "") or None,
        "supported": supported,
        "reason": reason,
        "short_factors_up_to": short,
        "hash_encoders": _hash_encoders(file),
        "n_parameters": file.n_parameters,
        "bits_per_weight": _bits(n_tensor_bytes, file.n_parameters),
        "types": _types(tensors),
        "metadata": {key: _value(file, key) for key in file.metadata},
        "tensors": tensors,
    }


def _treatment(tensor: Tensor) -> str:
    """What loading does with a tensor: experts are read as the file has them."""
    repacked = tensor.type.treatment == "repacked"
    return "native" if repacked and len(tensor.shape) > 2 else tensor.type.treatment


def _support(file: GGUFFile) -> tuple[bool, str | None]:
    """Whether kvarn can run this file, and if not, why."""
    kind = file.get("general.type", str, "model")
    if kind == "adapter" and _hash_encoders(file) is not None:
        return False, "hash encoders, which --method hash reads beside their model"
    if kind != "model":
        return False, f"the file is of type {kind!r}, not a model"
    name = file.get("general.architecture", str, "")
    encodes = name in TEXT_ENCODERS
    if name and name not in ARCHITECTURES and not encodes:
        return False, f"architecture {brief(name)} is unknown to kvarn{_missing_piece(file)}"
    try:
        (TextEncoderConfig if encodes else ModelConfig).from_metadata(file.metadata)
    except KvarnError as error:
        return False, str(error)
    if not file.tensors:
        return False, "a vocabulary only, without tensors"
    for tensor in file.tensors.values():
        if tensor.type.treatment == "unsupported":
            return False, f"tensor {tensor.name!r} has the unsupported type {tensor.type.name}"
    return True, None


def _missing_piece(file: GGUFFile) -> str:
    """The first tensor that shows what kvarn lacks for the file's architecture, in words."""
    for name in file.tensors:
        for part, piece in _LACKING.items():
            if name.startswith(part) or f".{part}" in name:
                return f", and needs {piece} (tensor {brief(name)})"
    return ""


def _hash_encoders(file: GGUFFile) -> dict[str, Any] | None:
    """What the file says of its learned hash encoders, which may be wrong; None without any."""
    try:
        description = Description.of(file)
    except KvarnError as error:
        return {"error": str(error)}
    return asdict(description) if description is not None else None


def _types(tensors: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tensors by type, the largest share first."""
    types: dict[str, dict[str, Any]] = {}
    for tensor in tensors:
        total = types.setdefault(
            tensor["type"],
            {
                "type": tensor["type"],
                "n_tensors": 0,
                "n_parameters": 0,
                "n_bytes": 0,
                "treatment": tensor["treatment"],
                "why": _TREATMENTS[tensor["treatment"]],
            },
        )
        total["n_tensors"] += 1
        total["n_parameters"] += tensor["n_parameters"]
        total["n_bytes"] += tensor["n_bytes"]
    for total in types.values():
        total["bits_per_weight"] = _bits(total["n_bytes"], total["n_parameters"])
    return sorted(types.values(), key=lambda total: -total["n_bytes"])


def _bits(n_bytes: int, n_weights: int) -> float | None:
    return round(8 * n_bytes / n_weights, 4) if n_weights else None


def _value(file: GGUFFile, key: str) -> Any:
    """A metadata value for JSON; of a long array its type, length and first values."""
    entry = file.metadata.entry(key)
    if entry.item is None and entry.end - entry.start > _WHOLE_STRING:
        first = file.metadata.first(key, _FIRST_CHARACTERS)
        return {"type": "string", "length": entry.end - entry.start, "first": [first]}
    if entry.item is None or entry.count <= _WHOLE_ARRAY:
        return _plain(file.metadata[key])
    first = _plain(file.metadata.first(key, _FIRST_VALUES))
    return {"type": entry.item.name.lower(), "length": entry.count, "first": first}


def _plain(value: Any) -> Any:
    """JSON has no NumPy arrays and no infinities: lists and words in their place."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (bool, int, float, str)):
        return value
    if len(value) > _WHOLE_ARRAY:
        return {"type": "array", "length": len(value), "first": _plain(value[:_FIRST_VALUES])}
    return [_plain(item) for item in (value if isinstance(value, list) else value.tolist())]


def render(description: dict[str, Any]) -> str:
    """The description as text for people."""
    runs = "yes" if description["supported"] else f"no: {description['reason']}"
    bits = description["bits_per_weight"]
    n_files = len(description["files"])
    summary = [
        ("file", f"{description['file']}{f' and {n_files - 1} more' if n_files > 1 else ''}"),
        ("size", f"{human_bytes(description['n_bytes'])} ({description['n_bytes']:,} bytes)"),
        ("format", f"GGUF version {description['version']}, alignment {description['alignment']}"),
        ("architecture", description["architecture"] or "not named"),
        ("runs in kvarn", runs),
        *_factor_rows(description["short_factors_up_to"]),
        *_encoder_rows(description["hash_encoders"]),
        ("parameters", f"{description['n_parameters']:,}"),
        ("bits per weight", "none" if bits is None else f"{bits:.2f}"),
    ]
    types = [
        (
            total["type"],
            f"{total['n_tensors']:,}",
            f"{total['n_parameters']:,}",
            human_bytes(total["n_bytes"]),
            f"{total['bits_per_weight']:.2f}",
            f"{total['treatment']}: {total['why']}",
        )
        for total in description["types"]
    ]
    metadata = [(key, _shown(value)) for key, value in description["metadata"].items()]
    tensors = [
        (
            tensor["name"],
            tensor["type"],
            " x ".join(f"{n}" for n in tensor["shape"]),
            human_bytes(tensor["n_bytes"]),
            tensor["treatment"],
        )
        for tensor in description["tensors"]
    ]
    type_heads = ("type", "tensors", "parameters", "size", "bits", "what kvarn does")
    tensor_heads = ("name", "type", "rows x columns", "size", "what kvarn does")
    sections = [columns(summary, "<<")]
    if types:
        sections.append(columns([type_heads, *types], "<>>>><"))
    sections.append(f"metadata: {len(metadata)} keys\n{columns(metadata, '<<')}")
    if tensors:
        sections.append(f"tensors: {len(tensors)}\n{columns([tensor_heads, *tensors], '<<>><')}")
    return "\n\n".join(sections)


def _factor_rows(up_to: int | None) -> list[tuple[str, str]]:
    if up_to is None:
        return []
    factors = f"short in contexts of up to {up_to:,} tokens, long in larger ones (LongRoPE)"
    return [("rope factors", factors)]


def _encoder_rows(facts: dict[str, Any] | None) -> list[tuple[str, str]]:
    if facts is None or "error" in facts:
        return [("hash encoders", facts["error"])] if facts else []
    return [
        ("hash encoders", f"{facts['bits']} bits, trained with {facts['length']:,} tokens"),
        ("made for", f"{facts['base']} (fingerprint {facts['fingerprint']})"),
    ]


def _shown(value: Any) -> str:
    """A metadata value in at most `_VALUE_WIDTH` characters, or a bit more when escaped."""
    if isinstance(value, dict):
        return _listed(f"{value['type']}[{value['length']}]: ", value["first"], more=True)
    if isinstance(value, list):
        return _listed(f"[{len(value)}]: ", value, more=False)
    if isinstance(value, str) and len(value) > _VALUE_WIDTH:
        ending = f"… ({len(value):,} characters)"
        return f"{value[: _VALUE_WIDTH - len(ending)]}{ending}"
    # Seven digits are what an f32 holds.
    return f"{value:.7g}" if isinstance(value, float) else str(value)


def _listed(start: str, values: list[Any], more: bool) -> str:
    """`start` and the values that fit a line behind it."""
    text = start
    for value in values:
        quoted = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else _shown(value)
        if len(text) + len(quoted) + 3 > _VALUE_WIDTH:
            return f"{text}…"
        text += f"{quoted}, "
    return f"{text}…" if more else text.removesuffix(", ")
