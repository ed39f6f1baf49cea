"""Keys and values: appending, attention of a token and of chunks, signatures and lists."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ...ops.attention.layout import SEGMENT, TileLayout
from ...ops.attention.softmax import Softmax
from ...ops.select import Lists, Network, Range, SketchedKeys, Wanted, sketch_bits
from ..append import append_kv
from ..attention import (
    ChunkScratch,
    TokenScratch,
    chunk_attention,
    gathered_attention,
    token_attention,
)
from ..select.hash import SignatureScratch, encoders_of, nearest
from ..select.sketch import (
    Frames,
    Rotation,
    SketchScratch,
    best_sketched,
    key_moments,
    sketch_keys,
)
from .case import OLD, Case, cases_of

HEADS, GROUP = 8, 4  # KV heads and query heads of each, where a case does not say
N_CTX = 2 * SEGMENT
DEVICE = torch.device("cpu")


def _bytes(n: int) -> torch.Tensor:
    """A column of items of n bytes."""
    return torch.zeros((N_CTX // SEGMENT, HEADS * SEGMENT * n), dtype=torch.uint8)


def _ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _segments(layout: TileLayout) -> torch.Tensor:
    return torch.zeros((N_CTX // SEGMENT, layout.segment_bytes(HEADS)), dtype=torch.uint8)


def attending(
    kv_type: str, head_dim: int, group: int, listed: bool, softcap: float = 0.0
) -> list[Case]:
    """Attention of a token over lists, or over all positions."""
    layout, heads = TileLayout(head_dim, kv_type, kv_type), HEADS * group
    q, kv = torch.zeros((1, heads, head_dim)), _segments(layout)

    def call(old: bool) -> None:
        options: dict[str, Any] = {
            "softmax": Softmax(0.5, softcap),
            "scratch": TokenScratch(heads, HEADS, layout, N_CTX, DEVICE, old),
        }
        if listed:
            gathered_attention(q, _ints(HEADS, N_CTX), _ints(HEADS), kv, q.clone(), **options)
        else:
            token_attention(q, kv, _ints(1), q.clone(), **options)

    label = f"{'lists' if listed else 'all'}, {kv_type} {group}x{head_dim}" + ", cap" * bool(
        softcap
    )
    steps = {"attend": TokenScratch(heads, HEADS, layout, N_CTX, DEVICE).step}
    return cases_of(label, call, per_step=steps, may_spill=() if head_dim == 64 else OLD)


def appending(kv_type: str, head_dim: int, n_tokens: int) -> list[Case]:
    """Storing keys and values of one token, or of several."""
    layout, k = TileLayout(head_dim, kv_type, kv_type), torch.zeros((n_tokens, HEADS, head_dim))
    return cases_of(
        f"{kv_type} {head_dim}, {n_tokens} tokens",
        lambda old: append_kv(k, k, _segments(layout), layout, _ints(1)),
    )


def reading(kv_type: str, head_dim: int) -> list[Case]:
    """A chunk of a prompt, with a soft cap."""
    layout, heads = TileLayout(head_dim, kv_type, kv_type), HEADS * GROUP
    q = torch.zeros((64, heads, head_dim))

    def call(old: bool) -> None:
        scratch = ChunkScratch(heads, HEADS, layout, N_CTX, DEVICE, old)
        chunk_attention(
            q, _segments(layout), 512, q.clone(), softmax=Softmax(0.5, 9.0), scratch=scratch
        )

    label = f"{kv_type} {head_dim}"
    return cases_of(label, call, may_spill=() if head_dim == 64 else OLD)


def signing(kv_type: str, head_dim: int, bits: int, hidden: int, n_tokens: int) -> list[Case]:
    """Signatures of queries and one key, or of several keys; hidden 0: SimHash."""
    widths = (head_dim, hidden, hidden, bits) if hidden else (head_dim, bits)
    n_weights = sum((n + 1) * m for n, m in pairwise(widths))
    network = (Network(np.zeros(n_weights, np.float32), widths),)
    layout, heads = TileLayout(head_dim, kv_type, kv_type), HEADS * GROUP
    places = SimpleNamespace(segments=lambda _: _segments(layout))
    layer = SimpleNamespace(index=0, store=places)
    column = SimpleNamespace(segments=lambda _: _bytes(bits // 8))

    def call(old: bool) -> None:
        networks = SimpleNamespace(queries=network, keys=network)
        encoders = encoders_of({0: networks}, heads, HEADS, layout, DEVICE)[0]
        if n_tokens > 1:
            encoders.sign_keys(layer, column, 0, n_tokens)
        else:
            signs = torch.zeros(heads, dtype=torch.uint64)
            encoders.sign_token(layer, column, [0, 1], torch.zeros((heads, head_dim)), signs)

    return cases_of(
        f"{kv_type} {head_dim}, {bits} bits, {len(widths) - 1} layers, {n_tokens} keys", call
    )


def choosing(bits: int) -> list[Case]:
    """The nearest signatures."""

    def call(old: bool) -> None:
        scratch = SignatureScratch(HEADS * GROUP, HEADS, N_CTX, 64, device=DEVICE, old=old)
        queries = torch.zeros((HEADS, GROUP), dtype=torch.uint64)
        lists = Lists(_ints(HEADS, N_CTX), _ints(HEADS))
        among, wanted = Range(4, 1900, N_CTX), Wanted(64, 64, 77)
        nearest(queries, _bytes(bits // 8), bits, among, wanted, lists, scratch=scratch)

    return cases_of(f"{bits} bits", call, per_step={"scan": SEGMENT}, may_spill=())


def sketching(kv_type: str, head_dim: int, n_tokens: int) -> list[Case]:
    """Sketches of one key of each KV head, or of several; mean and variance of keys."""
    layout = TileLayout(head_dim, kv_type, kv_type)
    rotation: Any = Rotation.random(head_dim, 5, DEVICE)
    columns = _bytes(rotation.bits // 8), _bytes(2)

    def call(old: bool) -> None:
        kv, frame = _segments(layout), Frames(DEVICE).plain(HEADS, head_dim)
        sketch_keys(SketchedKeys(kv, *columns, rotation, frame), layout, 0, n_tokens)
        key_moments(kv, layout, HEADS, 4, SEGMENT)

    return cases_of(f"{kv_type} {head_dim}, {n_tokens} keys", call)


def searching(kv_type: str, head_dim: int, group: int) -> list[Case]:
    """The best products among candidates by estimates."""
    layout, heads = TileLayout(head_dim, kv_type, kv_type), HEADS * group
    rotation: Any = Rotation.random(head_dim, 5, DEVICE)
    columns = _bytes(sketch_bits(head_dim) // 8), _bytes(2)

    def call(old: bool) -> None:
        frame = Frames(DEVICE).plain(HEADS, head_dim)
        keys = SketchedKeys(_segments(layout), *columns, rotation, frame)
        lists = Lists(_ints(HEADS, N_CTX), _ints(HEADS))
        scratch = SketchScratch(heads, HEADS, N_CTX, 128, layout, device=DEVICE)
        among, wanted = Range(4, 1900, N_CTX), Wanted(64, 128, 77)
        best_sketched(
            torch.zeros((1, heads, head_dim)), keys, among, wanted, lists, scratch=scratch
        )

    return cases_of(f"sketches {kv_type} {group}x{head_dim}", call)


def kv_cases() -> Iterator[Case]:
    """All of them."""
    for kv_type, head_dim, group, listed in (
        ("q8_0", 64, 4, True),
        ("q8_0", 64, 4, False),
        ("f16", 64, 4, True),
        ("q4_0", 64, 4, True),
        ("q8_0", 128, 8, True),
        ("f16", 128, 4, True),
        ("q4_0", 128, 8, False),
        ("q8_0", 256, 8, True),
        ("f16", 256, 8, True),
    ):
        yield from attending(kv_type, head_dim, group, listed)
    yield from attending("q8_0", 128, 4, True, softcap=30.0)
    for kv_type, head_dim, n_tokens in (
        ("q8_0", 64, 1),
        ("q4_0", 128, 1),
        ("f16", 64, 16),
        ("q8_0", 128, 16),
        ("q4_0", 256, 16),
    ):
        yield from appending(kv_type, head_dim, n_tokens)
    for kv_type, head_dim in (("q8_0", 64), ("f16", 128), ("q4_0", 256)):
        yield from reading(kv_type, head_dim)
    yield from signing("q8_0", 64, 32, 128, 1)
    yield from signing("q8_0", 128, 32, 0, 1)
    yield from signing("q4_0", 128, 64, 128, 16)
    yield from choosing(32)
    yield from choosing(64)
    yield from sketching("q8_0", 64, 1)
    yield from sketching("q4_0", 128, 16)
    yield from searching("q8_0", 64, 4)
    yield from searching("q4_0", 128, 3)
    yield from searching("f16", 256, 8)
