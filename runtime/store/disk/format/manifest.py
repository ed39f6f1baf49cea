"""`pack.json`: what a pack was made with and for, written when the pack is made.

    {"format": 1, "id": "…",
     "model": {"name", "fingerprint", "n_layers", "n_kv_heads", "head_dim", "n_embd", "path",
               "tokenizer"},
     "kv": {"k", "v", "segment"}, "rope": {"long"},
     "parent": {"path", "id", "n_segments", "log_bytes", "log_chain"} or null,
     "goal": N, "check": "…"}

"tokenizer" is the digest of the tokenizer (`loading.fingerprint`). Packs of older versions of kvarn
lack it; those versions ignore it when they read a newer pack.

A context that evicts has format 2, which adds "slots": {"keep": "…", "sizes": […]}, and in it, for
layers that hold a prompt whole, "whole": […], their numbers. Format 3 adds to format 1
"centre": "…" in "kv", the digest of the file `centre` (centre.py); format 4 has both. Format 5 is
that of packs whose prompts were not read exactly; it adds to format 1 or 3

     "prefill": {"mode", "index", "k", "from", "tail", "column digest"}

Format 6 adds to format 5 "rerank" in "prefill": candidates by signatures for each token that is
chosen, if not 1. Older versions of kvarn added to both, where a probe had measured what was left
out, "probe": {"LAYER": [tokens measured, mean share of the softmax covered, mean output error]}.

Packs that were read in blocks (mode "blocks") have "size" and "until", too, as `PrefillFacts` says.
Older versions of kvarn read them, and do not go on in their way.

Format 7 adds to format 1, 3, 5 or 6 "windows": […], for each layer the window beyond which it is
not stored, 0 for layers that are stored whole.

Format 8 adds to any of these "states": N, the bytes of what layers carry from token
to token besides K and V (states.py).

Format 9 is that of models whose layers differ in their keys, or whose heads have more than 256
numbers. It adds to any of these, in "model", "heads": [[KV heads, head size], …] of each layer,
where layers differ; "n_kv_heads" and "head_dim" are those of the layers without a window. Heads of
more than 512 numbers are keys and values at once (`ops.attention.shared`).

Format 10 is that of models with low-rank adapters. It adds to any of these, in "model",
"adapters": [[digest, scale, path], …].

`check` is the digest of the canonical JSON of all the rest, in hexadecimal.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .....models.config.bounds import (
    MAX_EMBD,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_ROW,
)
from .....ops.attention.layout import KV_TYPES, SEGMENT
from .....system.text import one_line
from ....loading.adapter_files import AdapterFacts
from ...base import SlotPlan
from ...facts import PrefillFacts, ProbeSums
from ...windowed import MOST_WINDOW
from .. import files
from ..errors import PackDamaged, PackError
from ..files import digest
from . import prompts, states
from .adapters import adapters_data, adapters_of
from .values import number, text

FORMAT = 10
_PLAIN, _SLOTS, _CENTRED, _CENTRED_SLOTS = 1, 2, 3, 4
_SPARSE, _RERANKED, _WINDOWED, _WITH_STATES = 5, 6, 7, 8
_HEADS, _ADAPTED = 9, 10
NAME = "pack.json"
_MOST = {
    "n_layers": MAX_LAYERS,
    "n_kv_heads": MAX_HEADS,
    "head_dim": MAX_ROW,
    "n_embd": MAX_EMBD,
}
MOST_BYTES = 1 << 16
"""Of a pack.json; real ones take about a kilobyte."""


@dataclass(frozen=True)
class ModelFacts:
    """The model that computed a pack's K and V, which no other model can use."""

    name: str
    fingerprint: str
    """Digest of sizes and weights, see `loading.fingerprint`; name and path may differ."""
    n_layers: int
    n_kv_heads: int
    head_dim: int
    n_embd: int
    path: str = ""
    """Where the model's file was, for commands without -m."""
    tokenizer: str = ""
    """Digest of the tokenizer, see `ModelInfo`; "" in packs of older versions of kvarn."""
    heads: tuple[tuple[int, int], ...] = ()
    """KV heads and head size of each layer, where layers differ in them; else ()."""
    adapters: tuple[AdapterFacts, ...] = ()

    def heads_of(self, layer: int) -> tuple[int, int]:
        """KV heads and head size of a layer."""
        return self.heads[layer] if self.heads else (self.n_kv_heads, self.head_dim)

    def __str__(self) -> str:
        return f"{one_line(self.name, 300)} (fingerprint {one_line(self.fingerprint)})"

    def same_model(self, other: ModelFacts) -> bool:
        """Whether both are the same model; its name, path and tokenizer may differ."""
        same = replace(self, name=other.name, path=other.path, tokenizer=other.tokenizer)
        return same == other

    def as_dict(self) -> dict[str, Any]:
        """For JSON; without the tokenizer's digest if that is unknown, and heads that are alike."""
        optional = ("tokenizer", "heads", "adapters")
        data = asdict(self) | {"adapters": adapters_data(self.adapters)}
        return {key: value for key, value in data.items() if key not in optional or value}


@dataclass(frozen=True)
class Parent:
    """The pack whose first full segments this one shares, and the state of its log then."""

    path: str
    id: str
    n_segments: int
    log_bytes: int
    log_chain: str


def new_id() -> str:
    """An id that no other pack has."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Manifest:
    """What one pack was made with and for.

    goal: tokens it is to hold when complete, 0 for any number. slots: of a context that evicts,
    None if all tokens stay. centre: digest of the mean keys, "" if keys are stored whole. prefill:
    how prompts were read, None if exactly. windows: of layers that are not stored whole, as
    `windowed.windows_of` gives them. state_bytes: of what layers carry besides K and
    V, 0 if they carry nothing.
    """

    model: ModelFacts
    k_type: str
    v_type: str
    long_rope: bool
    """Positions were rotated by the factors for long contexts (longrope models have two sets)."""
    parent: Parent | None = None
    goal: int = 0
    slots: SlotPlan | None = None
    centre: str = ""
    prefill: PrefillFacts | None = None
    probe: Mapping[int, ProbeSums] = field(default_factory=dict)
    """What older versions of kvarn have measured beside sparse reading, by layer."""
    windows: tuple[int, ...] = ()
    state_bytes: int = 0
    id: str = field(default_factory=new_id)

    @property
    def kv(self) -> str:
        """The types of K and V, for messages."""
        return self.k_type if self.k_type == self.v_type else f"{self.k_type}/{self.v_type}"

    @property
    def _format(self) -> int:
        if self.model.adapters:
            return _ADAPTED
        if self.model.heads or self.model.head_dim > MAX_HEAD_DIM:
            return _HEADS
        if self.state_bytes:
            return _WITH_STATES
        if self.windows:
            return _WINDOWED
        if self.prefill is not None:
            return _SPARSE if self.prefill.rerank == 1 else _RERANKED
        if self.slots is None:
            return _CENTRED if self.centre else _PLAIN
        return _CENTRED_SLOTS if self.centre else _SLOTS

    def write(self, folder: Path) -> None:
        """Write `pack.json`; OSError if that fails."""
        files.replace(folder / NAME, self.encode())

    def encode(self) -> bytes:
        """The bytes of `pack.json`."""
        data: dict[str, Any] = {
            "format": self._format,
            "id": self.id,
            "model": self.model.as_dict(),
            "kv": {"k": self.k_type, "v": self.v_type, "segment": SEGMENT},
            "rope": {"long": self.long_rope},
            "parent": None if self.parent is None else asdict(self.parent),
            "goal": self.goal,
        }
        if self.slots is not None:
            slots = asdict(self.slots)
            data["slots"] = {key: slots[key] for key in slots if key != "whole" or slots[key]}
        if self.centre:
            data["kv"]["centre"] = self.centre
        if self.prefill is not None:
            data["prefill"] = prompts.prefill_data(self.prefill)
        if self.windows:
            data["windows"] = list(self.windows)
        if self.state_bytes:
            data["states"] = self.state_bytes
        data["check"] = _check(data)
        return (json.dumps(data, indent=2) + "\n").encode()

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Read and check `pack.json`; `PackError` for anything but a sound one of this format."""
        return _parse(_load(folder), folder)


def _check(data: dict[str, Any]) -> str:
    rest = {key: value for key, value in data.items() if key != "check"}
    return digest(json.dumps(rest, sort_keys=True).encode()).hex()


def _load(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        text = files.read_file(path, MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        reason = "no such folder" if not folder.exists() else f"no {NAME} in it"
        raise PackError(folder, f"not a context pack: {reason}") from error
    except OSError as error:
        raise PackError(folder, f"its {NAME} cannot be read: {error.strerror or error}") from error
    try:
        data = json.loads(text) if len(text) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise PackDamaged(folder, f"{NAME} is damaged: it is no JSON object")
    return data


def _parse(data: dict[str, Any], folder: Path) -> Manifest:
    form = data.get("format")
    if type(form) is int and form > FORMAT:
        raise PackError(
            folder,
            f"it has format {form}, this kvarn reads formats up to {FORMAT}: install a newer kvarn",
        )
    try:
        if data.get("check") != _check(data):
            raise PackDamaged(folder, f"{NAME} is damaged: its contents do not match its checksum")
        return _typed(data)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise PackDamaged(folder, f"{NAME} is not one that kvarn writes: {error}") from error


def _typed(data: dict[str, Any]) -> Manifest:
    model, kv, parent = data["model"], data["kv"], data["parent"]
    sizes = {name: number(model[name], 1, most) for name, most in _MOST.items()}
    if kv["k"] not in KV_TYPES or kv["v"] not in KV_TYPES or kv["segment"] != SEGMENT:
        raise ValueError(f"kv is {kv!r:.100}")
    form = number(data["format"], _PLAIN, FORMAT)
    with_states = form >= _WITH_STATES and (form < _HEADS or "states" in data)
    slots = form in (_SLOTS, _CENTRED_SLOTS) or (form >= _WITH_STATES and "slots" in data)
    windowed = form == _WINDOWED or (form >= _WITH_STATES and "windows" in data)
    sparse = form in (_SPARSE, _RERANKED) or (form >= _WINDOWED and "prefill" in data)
    centred = form in (_CENTRED, _CENTRED_SLOTS) or (form >= _SPARSE and "centre" in kv)
    if type(data["rope"]["long"]) is not bool:
        raise ValueError("rope.long is neither true nor false")
    name, fingerprint, path = (text(model[key]) for key in ("name", "fingerprint", "path"))
    windows = _windows(data["windows"], sizes["n_layers"]) if windowed else ()
    facts = ModelFacts(
        name,
        fingerprint,
        **sizes,
        path=path,
        tokenizer=text(model.get("tokenizer", "")),
        heads=_heads(model["heads"], sizes) if form >= _HEADS and "heads" in model else (),
        adapters=adapters_of(model["adapters"]) if form == _ADAPTED else (),
    )
    _check_heads(facts, windows)
    return Manifest(
        facts,
        kv["k"],
        kv["v"],
        data["rope"]["long"],
        None if parent is None else _parent(parent),
        number(data["goal"]),
        _slots(data["slots"], sizes["n_layers"]) if slots else None,
        bytes.fromhex(kv["centre"]).hex() if centred else "",
        prompts.prefill_of(data["prefill"]) if sparse else None,
        _probe(data.get("probe", {}), sizes["n_layers"]) if sparse else {},
        windows,
        number(data["states"], 1, states.MOST_BYTES) if with_states else 0,
        text(data["id"]),
    )


def _probe(data: dict[str, Any], n_layers: int) -> dict[int, ProbeSums]:
    means = prompts.probe_of(data, n_layers)
    return {
        layer: ProbeSums(n := mean.n_tokens, n * mean.covered_mass, n * mean.output_error)
        for layer, mean in means.items()
    }


def _slots(data: dict[str, Any], n_layers: int) -> SlotPlan:
    sizes = tuple(number(size, 1) for size in data["sizes"])
    if len(sizes) != n_layers:
        raise ValueError(f"slots of {len(sizes)} layers, the model has {n_layers}")
    whole = tuple(number(layer, 0, n_layers - 1) for layer in data.get("whole", ()))
    return SlotPlan(text(data["keep"]), sizes, whole)


def _windows(data: Any, n_layers: int) -> tuple[int, ...]:
    windows = tuple(number(window, 0, MOST_WINDOW) for window in data)
    if len(windows) != n_layers or not any(windows):
        raise ValueError(f"windows of {len(windows)} layers, the model has {n_layers}")
    return windows


def _heads(data: Any, sizes: dict[str, int]) -> tuple[tuple[int, int], ...]:
    most = _MOST["n_kv_heads"], _MOST["head_dim"]
    heads = tuple(
        (number(n_kv_heads, 1, most[0]), number(head_dim, 1, most[1]))
        for n_kv_heads, head_dim in data
    )
    if len(heads) != sizes["n_layers"]:
        raise ValueError(f"heads of {len(heads)} layers, the model has {sizes['n_layers']}")
    return heads


def _check_heads(facts: ModelFacts, windows: tuple[int, ...]) -> None:
    """ValueError unless layers that are stored in the same way have the same heads."""
    if not facts.heads:
        return
    whole = facts.n_kv_heads, facts.head_dim
    in_windows = {heads for heads, window in zip(facts.heads, windows) if window}
    others = {heads for heads, window in zip(facts.heads, windows) if not window} or {whole}
    if len(in_windows) != 1 or others != {whole}:
        raise ValueError("layers that are stored in the same way differ in their heads")


def _parent(data: dict[str, Any]) -> Parent:
    return Parent(
        text(data["path"]),
        text(data["id"]),
        number(data["n_segments"], 1),
        number(data["log_bytes"]),
        bytes.fromhex(data["log_chain"]).hex(),
    )
