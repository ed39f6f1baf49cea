"""`pack.json`: what a pack was made with and for, written when the pack is made.

    {"format": 10, "id": "…",
     "model": {"name", "fingerprint", "n_layers", "n_kv_heads", "head_dim", "n_embd", "path",
               "tokenizer", ["heads",] ["adapters"]},
     "kv": {"k", "v", "segment", ["centre"]}, "rope": {"long"},
     "parent": {"path", "id", "n_segments", "log_bytes", "log_chain"} or null,
     "goal": N, ["slots",] ["prefill",] ["windows",] ["states",] "check": "…"}

tokenizer   the digest of the tokenizer (`loading.fingerprint`)
heads       [[KV heads, head size], …] of each layer, where layers differ; "n_kv_heads" and
            "head_dim" are those of the layers without a window. Heads of more than 512 numbers are
            keys and values at once (`ops.attention.layout`)
adapters    [[digest, scale, path], …], where the model has some
centre      the digest of the file `centre` (centre.py), where keys are stored without their mean
slots       of a context that evicts: {"keep": "…", "sizes": […], ["whole": […]]}, the last one the
            numbers of layers that hold a prompt whole
prefill     how prompts were read, if not exactly (prompts.py)
windows     where there are any: for each layer the window beyond which it is not stored, or 0
states      the bytes of what layers carry from token to token besides K and V (states.py), if any
check       the digest of the canonical JSON of all the rest, in hexadecimal

Formats 1 to 9, of development versions, have a part of these keys and are read alike.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .....models.config.bounds import MAX_EMBD, MAX_HEADS, MAX_LAYERS, MAX_ROW
from .....ops.attention.layout import KV_TYPES, SEGMENT
from .....system.text import one_line
from ....loading.adapter_files import AdapterFacts
from ...base import SlotPlan
from ...facts import PrefillFacts
from ...windowed import MOST_WINDOW
from .. import files
from ..errors import PackDamaged, PackError
from ..files import digest
from . import prompts, states
from .adapters import adapters_data, adapters_of
from .values import number, text

FORMAT = 10
NAME = "pack.json"
_MOST = {"n_layers": MAX_LAYERS, "n_kv_heads": MAX_HEADS, "head_dim": MAX_ROW, "n_embd": MAX_EMBD}
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
    """Digest of the tokenizer, see `ModelInfo`."""
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
        """The facts as a JSON object, without heads that are all alike and empty adapters."""
        optional = ("heads", "adapters")
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

    def folder(self, child: Path) -> Path:
        """Where it is for the pack in `child`: where it was, or else under its name beside that,
        as both were moved, or are mounted elsewhere."""
        named, name = child / self.path, Path(self.path).name
        beside = Path(os.path.realpath(child)).parent / name
        return beside if not _is_pack(named) and _is_pack(beside) else named


def _is_pack(folder: Path) -> bool:
    return os.path.exists(folder / NAME)  # noqa: PTH110 - False for names that no file can have


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
    windows: tuple[int, ...] = ()
    state_bytes: int = 0
    id: str = field(default_factory=new_id)

    def write(self, folder: Path) -> None:
        """Write `pack.json`; OSError if that fails."""
        files.replace(folder / NAME, self.encode())

    def encode(self) -> bytes:
        """The bytes of `pack.json`."""
        data: dict[str, Any] = {
            "format": FORMAT,
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
        data = _load(folder)
        version = data.get("format")
        if type(version) is int and version > FORMAT:
            reads = f"this kvarn reads formats up to {FORMAT}: install a newer kvarn"
            raise PackError(folder, f"it has format {version}, {reads}")
        try:
            if data.get("check") != _check(data):
                raise PackDamaged(
                    folder, f"{NAME} is damaged: its contents do not match its checksum"
                )
            return _typed(data)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise PackDamaged(folder, f"{NAME} is not one that kvarn writes: {error}") from error


def _check(data: dict[str, Any]) -> str:
    rest = {key: value for key, value in data.items() if key != "check"}
    return digest(json.dumps(rest, sort_keys=True).encode()).hex()


def _load(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        text = files.read_file(path, MOST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        reason = f"not a context pack: no {NAME} in it"
        if not folder.exists():
            reason = "no such folder; `kvarn pack ls` lists the packs"
        raise PackError(folder, reason) from error
    except OSError as error:
        raise PackError(folder, f"its {NAME} cannot be read: {error.strerror or error}") from error
    try:
        data = json.loads(text) if len(text) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise PackDamaged(folder, f"{NAME} is damaged: it is no JSON object")
    return data


def _typed(data: dict[str, Any]) -> Manifest:
    model, kv, parent = data["model"], data["kv"], data["parent"]
    sizes = {name: number(model[name], 1, most) for name, most in _MOST.items()}
    if kv["k"] not in KV_TYPES or kv["v"] not in KV_TYPES or kv["segment"] != SEGMENT:
        raise ValueError(f"kv is {kv!r:.100}")
    number(data["format"], 1, FORMAT)
    if type(data["rope"]["long"]) is not bool:
        raise ValueError("rope.long is neither true nor false")
    name, fingerprint, path = (text(model[key]) for key in ("name", "fingerprint", "path"))
    windows = _windows(data["windows"], sizes["n_layers"]) if "windows" in data else ()
    facts = ModelFacts(
        name,
        fingerprint,
        **sizes,
        path=path,
        tokenizer=text(model["tokenizer"]),
        heads=_heads(model["heads"], sizes) if "heads" in model else (),
        adapters=adapters_of(model["adapters"]) if "adapters" in model else (),
    )
    _check_heads(facts, windows)
    return Manifest(
        facts,
        kv["k"],
        kv["v"],
        data["rope"]["long"],
        None if parent is None else _parent(parent),
        number(data["goal"]),
        _slots(data["slots"], sizes["n_layers"]) if "slots" in data else None,
        bytes.fromhex(kv["centre"]).hex() if "centre" in kv else "",
        prompts.prefill_of(data["prefill"]) if "prefill" in data else None,
        windows,
        number(data["states"], 1, states.MOST_BYTES) if "states" in data else 0,
        text(data["id"]),
    )


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
    heads = tuple((number(n, 1, MAX_HEADS), number(dim, 1, MAX_ROW)) for n, dim in data)
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
