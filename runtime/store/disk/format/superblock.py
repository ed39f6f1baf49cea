"""The file `commits`: two superblocks, written in turn; the newer sound one is valid.

    slot 0 at byte 0, slot 1 at byte SLOT, each:
       0   8  magic "kvarncm1"
       8   4  n, bytes of the body
      12   4  h, bytes of the hidden state: 4 per element, 0 where there is none
      16   8  digest of bytes 0 to 15, then of body and hidden state
      24   n  body: JSON, see `Commit`
    24+n   h  hidden state of the last token after `output_norm`, float32

SLOT is 64 KiB plus the hidden state, rounded up to 4 KiB. Commit number s is in slot s % 2, so a
torn write leaves the commit before it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import numpy as np

from .....models.config.bounds import MAX_LAYERS
from .....ops.arrays import F32
from ...facts import ProbeSums
from ..files import DIGEST, digest
from . import prompts
from .checkpoints import Checkpoint
from .states import StateSlot
from .values import number

NAME = "commits"
_HEAD = struct.Struct("<8sII")
_MAGIC = b"kvarncm1"
_BODY = 1 << 16


@dataclass(frozen=True)
class Tail:
    """The records of the open segment: the first `n_bytes` of file `tail-{epoch}`."""

    epoch: int = 0
    n_bytes: int = 0
    chain: str = ""


@dataclass(frozen=True)
class Pin:
    """A place where a text ended, in a pack with windows: its tail file stays, so that a new pack
    can begin with the tokens of its open segment up to there."""

    n_tokens: int
    tail: Tail

    @staticmethod
    def of(data: Any) -> Pin:
        """Of its numbers, from JSON; ValueError for anything else."""
        n_tokens, epoch, n_bytes, chain = data
        return Pin(number(n_tokens, 1), Tail(number(epoch), number(n_bytes), _chain(chain)))


@dataclass(frozen=True)
class Commit:
    """One state of a pack: everything that a reader needs to find it."""

    sequence: int
    n_tokens: int
    log_bytes: int
    log_chain: str
    tail: Tail
    n_prompt: int = 0
    """See `Saved`."""
    probe: Mapping[int, ProbeSums] = field(default_factory=dict)
    """By layer, what was measured of prompts that were read sparsely."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Of layers with a window, in the order of segments."""
    states: tuple[StateSlot, ...] = ()
    """Of layers that carry a state, in the order of positions."""
    n_apart: int | None = None
    """See `KVStore`; written where prompts are read in blocks."""
    pins: tuple[Pin, ...] = ()
    """The oldest first."""

    @property
    def epochs(self) -> set[int]:
        """The epochs of the tail files that it names."""
        return {self.tail.epoch, *(pin.tail.epoch for pin in self.pins)}


def slot_bytes(n_embd: int) -> int:
    """Bytes from slot 0 to slot 1."""
    return -(-(_BODY + 4 * n_embd) // 4096) * 4096


def encode(commit: Commit, hidden: F32 | None) -> bytes:
    """The bytes of a superblock."""
    lists = {
        "checkpoints": [astuple(checkpoint) for checkpoint in commit.checkpoints],
        "states": [astuple(slot) for slot in commit.states],
        "pins": [(pin.n_tokens, *astuple(pin.tail)) for pin in commit.pins],
    }
    data = asdict(commit) | {"probe": prompts.probe_data(commit.probe)}
    if commit.n_apart is None:
        del data["n_apart"]
    data = {name: value for name, value in data.items() if name not in lists}
    data |= {name: items for name, items in lists.items() if items}  # they come last
    body = json.dumps(data).encode()
    state = b"" if hidden is None else hidden.astype("<f4").tobytes()
    head = _HEAD.pack(_MAGIC, len(body), len(state))
    return head + digest(body + state, head) + body + state


def decode(data: bytes, n_embd: int) -> tuple[Commit, F32 | None] | None:
    """The commit in the bytes of a slot; None if it is not sound."""
    start = _HEAD.size + DIGEST
    if len(data) < start:
        return None
    magic, n_body, n_state = _HEAD.unpack_from(data)
    stop, room = start + n_body + n_state, min(len(data), slot_bytes(n_embd))
    if magic != _MAGIC or n_state not in (0, 4 * n_embd) or stop > room:
        return None
    if digest(data[start:stop], data[: _HEAD.size]) != data[_HEAD.size : start]:
        return None
    try:
        commit = _commit(json.loads(data[start : start + n_body]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    state = np.frombuffer(data[start + n_body : stop], "<f4").astype(np.float32)
    return commit, state if n_state else None


def _commit(data: dict[str, Any]) -> Commit:
    tail, n_tokens = data["tail"], number(data["n_tokens"])
    return Commit(
        number(data["sequence"]),
        n_tokens,
        number(data["log_bytes"]),
        _chain(data["log_chain"]),
        Tail(number(tail["epoch"]), number(tail["n_bytes"]), _chain(tail["chain"])),
        number(data.get("n_prompt", 0), 0, n_tokens),
        prompts.probe_of(data.get("probe", {}), MAX_LAYERS),
        tuple(map(Checkpoint.of, data.get("checkpoints", ()))),
        tuple(map(StateSlot.of, data.get("states", ()))),
        number(data["n_apart"]) if "n_apart" in data else None,
        tuple(map(Pin.of, data.get("pins", ()))),
    )


def _chain(value: Any) -> str:
    bytes.fromhex(value)
    return str(value)
