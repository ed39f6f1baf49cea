"""How a head and a shard learn whom they talk to, before anything is computed.

    shard → head   HELLO  {"kvarn": version, "protocol": 5, "nonce": …}
    head → shard   PROOF  {"kvarn": version, "protocol": 5, "nonce": …, "proof": …}
    shard → head   FACTS  {"proof": …, and what `ShardFacts` has}, or ERROR with a line

A proof is the HMAC (SHA-256) of both nonces by the token, so the token itself is never sent, and
neither side talks on to one that does not know it. What follows is not encrypted.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import xxhash

from ... import __version__
from ...ops.attention.layout import SEGMENT
from ...system.text import one_line
from ..store.disk.format.log import KV
from ..store.disk.store import DiskStore
from .frames import MOST_GREETING, FrameError, Kind, receive, send, text_array, text_of

PROTOCOL = 5
SECONDS = 5.0
"""In which a greeting has to be over."""
_NONCE_BYTES = 16


@dataclass(frozen=True)
class ShardFacts:
    """Which tokens a shard holds, and of what.

    pack: the id of the pack; digest: of all K and V before `stop` (`digest_of`). kv: types of K and
    V, as "f16/f16". first, stop: its tokens first … stop - 1. columns: the indexes that have all of
    these.
    """

    pack: str
    digest: str
    kv: str
    first: int
    stop: int
    columns: tuple[str, ...] = ()

    @staticmethod
    def parse(data: dict[str, Any]) -> ShardFacts:
        """The facts in a message; `FrameError` if they cannot be."""
        try:
            facts = ShardFacts(**{key: data[key] for key in ShardFacts.__dataclass_fields__})
        except KeyError:
            facts = ShardFacts("", "", "", 0, 0)
        first, stop, columns = facts.first, facts.stop, facts.columns
        numbers = type(first) is int and type(stop) is int and 0 <= first < stop < 1 << 40
        named = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
        texts = (facts.pack, facts.digest, facts.kv)
        if not numbers or not named or not all(isinstance(text, str) for text in texts):
            raise FrameError("it does not say which tokens it holds")
        return replace(facts, columns=tuple(columns))


def digest_of(store: DiskStore, n_segments: int) -> str:
    """Digest of the token ids, K and V of a pack's first full segments, by those in its log. Of the
    commit that the store has opened: a writer may have made others since."""
    digest = xxhash.xxh3_128()
    ids = np.asarray(store.saved.tokens, "<u4")[: n_segments * SEGMENT].reshape(-1, SEGMENT)
    for row, place in zip(ids, store.places[KV][:n_segments], strict=True):
        digest.update(row.tobytes())
        for part in place.digests:
            digest.update(part)
    return digest.hexdigest()


def facts_of(store: DiskStore, first: int, stop: int) -> ShardFacts:
    """What a shard of segments first … stop - 1 of a pack says of itself."""
    manifest, places = store.folder.manifest, store.places
    columns = tuple(name for name in places if name != KV and len(places[name]) >= stop)
    kv = f"{manifest.k_type}/{manifest.v_type}"
    digest = digest_of(store, stop)
    return ShardFacts(manifest.id, digest, kv, first * SEGMENT, stop * SEGMENT, columns)


def admit(
    connection: socket.socket, token: str, facts: ShardFacts, enter: Callable[[], str]
) -> None:
    """As a shard, greet a head, and tell it the facts if it knows the token. enter: called then;
    says why the head is refused nevertheless, or "".

    Raises `FrameError` if it is refused, also for another version, which it was told then; errors
    of the connection.
    """
    deadline, ours = time.monotonic() + SECONDS, secrets.token_hex(_NONCE_BYTES)
    _send(connection, Kind.HELLO, _version() | {"nonce": ours})
    answer = _receive(connection, Kind.PROOF, deadline)
    theirs, reason = str(answer.get("nonce")), _version_mismatch(answer)
    if not reason and not _proves(token, "head", (ours, theirs), answer):
        reason = "the token is wrong, or missing: both sides need the same --token"
    if reason := reason or enter():
        send(connection, Kind.ERROR, [text_array(reason)])
        raise FrameError(reason)
    proof = {"proof": _proof(token, "shard", (theirs, ours))}
    _send(connection, Kind.FACTS, proof | asdict(facts))


def greet(connection: socket.socket, token: str) -> ShardFacts:
    """As a head, learn what a shard holds.

    Raises `FrameError` for one of another version, one that does not know the token, or something
    else than a shard; errors of the connection.
    """
    deadline, ours = time.monotonic() + SECONDS, secrets.token_hex(_NONCE_BYTES)
    hello = _receive(connection, Kind.HELLO, deadline)
    if reason := _version_mismatch(hello):
        raise FrameError(reason)
    theirs = str(hello.get("nonce"))
    proof = {"nonce": ours, "proof": _proof(token, "head", (theirs, ours))}
    _send(connection, Kind.PROOF, _version() | proof)
    facts = _receive(connection, Kind.FACTS, deadline)
    if not _proves(token, "shard", (ours, theirs), facts):
        raise FrameError("it does not know the token: both sides need the same --token")
    return ShardFacts.parse(facts)


def _version() -> dict[str, Any]:
    return {"kvarn": __version__, "protocol": PROTOCOL}


def _version_mismatch(said: dict[str, Any]) -> str:
    """What differs where the other side is not of this version; else ""."""
    if {key: said.get(key) for key in _version()} == _version():
        return ""
    sides = (f"kvarn {x.get('kvarn')}, protocol {x.get('protocol')}" for x in (said, _version()))
    theirs, ours = (one_line(side, 80) for side in sides)
    return f"the other side is {theirs}, this one {ours}: use one version of kvarn on all machines"


def _proof(token: str, side: str, nonces: tuple[str, str]) -> str:
    message = _bytes(" ".join((side, *nonces)))
    return hmac.new(token.encode(), message, "sha256").hexdigest()


def _proves(token: str, side: str, nonces: tuple[str, str], said: dict[str, Any]) -> bool:
    proof = _bytes(str(said.get("proof")))
    return hmac.compare_digest(proof, _proof(token, side, nonces).encode())


def _bytes(said: str) -> bytes:
    """Of what a stranger said: JSON has texts that are no UTF-8."""
    return said.encode("utf-8", "surrogatepass")


def _send(connection: socket.socket, kind: Kind, data: dict[str, Any]) -> None:
    send(connection, kind, [text_array(json.dumps(data))])


def _receive(connection: socket.socket, kind: Kind, deadline: float) -> dict[str, Any]:
    """The object in a message of that kind; `FrameError` for others."""
    frame = receive(connection, MOST_GREETING, deadline)
    if len(frame.arrays) != 1:
        raise FrameError("it does not greet as a shard or a head")
    text = text_of(frame.arrays[0])
    if frame.kind is Kind.ERROR:
        raise FrameError(one_line(text, 300))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if frame.kind is not kind or not isinstance(data, dict):
        raise FrameError("it does not greet as a shard or a head")
    return data
