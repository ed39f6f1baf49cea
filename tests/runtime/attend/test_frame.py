"""Indexes of keys less their centre: of stored tokens alone, made anew, never misread."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from kvarn.ops.reference.attention import read_kv
from kvarn.ops.reference.select import sketch_reference
from kvarn.ops.select import Rotation
from kvarn.runtime.attend import Full, TopK
from kvarn.runtime.attend.sparse import SEED
from kvarn.runtime.attend.sparse.frame import N_FIRST, averaged, scales_of
from kvarn.runtime.context import Context
from kvarn.runtime.model import Model
from kvarn.runtime.store import Disk, Ram
from kvarn.runtime.store.disk.checking.verify import verify

METHOD = TopK(budget=40, sink=4, window=16)
SEGMENT, HEADS, E, CTX = 1024, 2, 32, 5000


def ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, n).tolist()


def opened(model: Model, store, attend=METHOD, read: int = 0) -> Context:
    context = model.context(CTX, attend, store=store)
    if read > len(context.tokens):
        context.prefill(ids(read)[len(context.tokens) :])
    return context


def sketches(context: Context, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Bits (S, J, 8) and factors (S, J) of all tokens, as stored for the layer."""
    index, n = context._cache.attend._index, len(context.tokens)
    parts = []
    for name, item_bytes in index._items.items():
        column = context.store.column(f"{name}-c{averaged(n)}", item_bytes)
        assert column.filled[layer] == n
        size = HEADS * SEGMENT * column.item_bytes
        raw = [
            np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(int(at))), np.uint8)
            for at in column.segments(layer)
        ]
        items = np.stack(raw).reshape(-1, HEADS, SEGMENT, column.item_bytes).swapaxes(1, 2)
        parts.append(items.reshape(-1, HEADS, column.item_bytes)[:n].copy())
    return parts[0], parts[1].view(np.float16)[..., 0]


def check(context: Context) -> None:
    """All sketches are RaBitQ's, of the stored keys less the mean that the definition gives."""
    n = len(context.tokens)
    full = max(m for m in (1, 2, 4, 8, 16) if m * SEGMENT <= n)
    rotation = Rotation.random(E, SEED).weights[: 64 * 64].reshape(64, 64)
    squares = context.model.info.measured("queries", lambda: 1 / 0, "")  # measured by opening it
    for layer in range(2):
        store = context.store
        keys = read_kv(store.segments(layer), store.layout, HEADS, 0, n)[0].astype(np.float64)
        bits, factors = sketches(context, layer)
        for j in range(HEADS):
            first = keys[N_FIRST : full * SEGMENT]
            scales = scales_of(squares[layer], first.var(0).astype(np.float32))
            rest = (keys[:, j] - first[:, j].mean(0)) * scales[j]
            signs, want = sketch_reference(rest, rotation)
            got = np.unpackbits(bits[:, j], axis=1, bitorder="little") * 2.0 - 1
            assert (got == signs).mean() > 0.999
            np.testing.assert_allclose(factors[:, j], want, rtol=2e-3, atol=1e-4)


def test_the_centre_is_fixed_at_powers_of_two() -> None:
    counts = [0, 1023, 1024, 2047, 2048, 4095, 4096, 8191, 8192, 16383, 16384, 1 << 20]
    assert [averaged(n) for n in counts] == [0, 0, 1, 1, 2, 2, 4, 4, 8, 8, 16, 16]


def test_scales_are_the_formula_and_keep_the_mean_square() -> None:
    q = np.array([[4.0, 1.0, 0.0], [1.0, 1.0, 1.0]], np.float32)
    v = np.array([[1.0, 16.0, 3.0], [2.0, 2.0, 2.0]], np.float32)
    got = scales_of(q, v)
    want = [((a + 0.03 * 5 / 3) / (b + 0.03 * 20 / 3)) ** 0.25 for a, b in zip(q[0], v[0])]
    np.testing.assert_allclose(got[0] / got[0, 0], want / want[0], rtol=1e-6)
    spread = v[0] + 0.03 * 20 / 3
    np.testing.assert_allclose((got[0] ** 2 * spread).mean(), spread.mean(), rtol=1e-6)
    np.testing.assert_allclose(got[1], 1, rtol=1e-6)


@pytest.mark.parametrize("dead", [0.0, np.inf, np.nan])
def test_a_head_without_spread_has_no_scales(dead: float) -> None:
    """The other head has its own."""
    x = np.array([[dead, dead], [1.0, 9.0]], np.float32)
    for q, v in ((x, x[::-1].copy()), (np.ones((2, 2), np.float32), x)):
        scales = scales_of(q, v)
        assert np.isfinite(scales).all() and (scales > 0).all()
        assert (scales[0] == 1).all()


def test_short_contexts_are_read_whole(model: Model) -> None:
    logits = []
    for attend in (METHOD, Full()):
        context = opened(model, Ram(), attend, 1020)
        logits.append([context.decode(token).copy() for token in ids(4, 1)])
        if attend == METHOD:
            assert all(r.steps == 1 and r.full_steps == 3 for r in context.stats.layers)
    np.testing.assert_array_equal(logits[0][:3], logits[1][:3])


@pytest.mark.parametrize("kind", ["f16", "q4_0"])
def test_it_is_of_stored_tokens_alone(model: Model, kind: str) -> None:
    """One call, many, token by token across a boundary, or after cuts: the same sketches."""
    whole = opened(model, Ram(kind, kind), read=4200)
    check(whole)
    parts = model.context(CTX, METHOD, store=Ram(kind, kind))
    for first, last in ((0, 700), (700, 2040), (2060, 4090), (4110, 4200)):
        parts.prefill(ids(4200)[first:last])
        for token in ids(4200)[last : last + 20 * (last < 4200)]:
            parts.decode(token)
    if kind == "f16":  # others keep a few bits of a token read alone and of one of a chunk apart
        check(parts)
    cut = opened(model, Ram(kind, kind), read=4200)
    for held in (4000, 2500, 1000):  # to another centre, and another, and none
        cut.truncate(held)
        cut.decode(ids(4200)[held])
        if held > SEGMENT:
            check(cut)
    cut.prefill(ids(4200)[1001:])
    for layer in range(2):
        for a, b in zip(sketches(whole, layer), sketches(cut, layer)):
            assert (a == b).mean() > 0.99


@pytest.mark.parametrize("disk", [False, True])
def test_tokens_that_the_centre_is_of_are_overwritten(
    model: Model, tmp_path: Path, disk: bool
) -> None:
    """In one chunk, from below the boundary to beyond it, so that the stage stays the same."""
    store = Disk(tmp_path / "pack") if disk else Ram()
    context = opened(model, store, read=4200)  # what was saved for 2 segments is put aside
    context.truncate(1030)
    context.prefill(ids(1170, 2))
    check(context)
    for _ in range(2):
        context.truncate(2000)
        context.prefill(ids(200, 3))
        check(context)
    context.close()
    if disk:
        assert verify(tmp_path / "pack") == []
        context = opened(model, store)
        assert {"sketch-20240517-scaled-c2", "frame"} <= set(context.store.columns)
        assert all(
            (column.filled == 2048).all()
            for name, column in context.store.columns.items()
            if name.endswith("c2") or name == "frame"
        )
        context.index()
        check(context)
        context.close()


def test_a_pack_that_others_wrote_is_never_misread(model: Model, tmp_path: Path) -> None:
    """Tokens of the centre are overwritten by a method without sketches; then a reader comes."""
    pack = tmp_path / "pack"
    opened(model, Disk(pack), read=4200).close()
    with opened(model, Disk(pack), Full()) as context:
        context.truncate(1500)
        context.prefill(ids(3000, 5))
    seen: list[tuple[int, int]] = []
    for store in (Disk(pack, read_only=True), Disk(pack), Disk(pack, read_only=True, io="pread")):
        with opened(model, store) as context:
            context.index(lambda *at: seen.append(at))
            check(context)
    assert seen == 3 * [(1, 2), (2, 2)]
    with opened(model, Disk(pack, read_only=True)) as context:
        assert (context.store.columns["sketch-20240517-scaled-c4"].filled == 4096).all()


def test_a_damaged_centre_is_measured_again(model: Model, tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    with opened(model, Disk(pack), read=2200) as context:
        want = context.decode(9).copy()
        context.truncate(2200)
    file = pack / "index-frame"
    data = bytearray(file.read_bytes())
    for at in range(0, len(data), 64):
        data[at] ^= 1
    file.write_bytes(data)
    assert any("frame" in line for line in verify(pack))
    for store in (Disk(pack, read_only=True), Disk(pack)):
        with opened(model, store) as context:
            np.testing.assert_array_equal(context.decode(9), want)
            check(context)
            context.truncate(2200)
    assert verify(pack) == []


def test_only_one_centres_columns_are_held(model: Model, tmp_path: Path) -> None:
    for store in (Ram(), Disk(tmp_path / "pack")):
        with opened(model, store, read=4200) as context:
            columns = getattr(context.store, "columns", None) or context.store._columns
            assert sorted(columns) == [
                "frame",
                "sketch-20240517-scaled-c4",
                "sketch-20240517-scaled-factors-c4",
            ]
