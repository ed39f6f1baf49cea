"""Sketches of stored keys and their means, against `ops`, bit for bit."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from kvarn.cuda_ops.errors import CudaOpsError
from kvarn.cuda_ops.select.sketch import Frames, Rotation, key_moments, keys, sketch_keys
from kvarn.ops import select as ops
from kvarn.ops.attention import TileLayout
from kvarn.ops.attention.layout import SEGMENT

from .sketched import Cache, frame_of, keys_of


def test_the_interpreter_fuses_as_a_gpu_does(fused) -> None:
    rng = np.random.default_rng(0)
    x, y, z = rng.standard_normal((3, 300)).astype(np.float32)
    z[::3] = -(x * y)[::3]  # what is left are the bits that a product would lose
    z[1::3] *= np.float32(2.0) ** rng.integers(-60, 60, 100)
    for a, b, c, got in zip(x, y, z, fused(x, y, z)):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = np.float32(float(exact))
        least = min(
            (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))),
            key=lambda v: abs(Fraction(float(v)) - exact),
        )
        assert got == least


@pytest.mark.parametrize(
    ("head_dim", "kind", "heads", "start", "n_tokens"),
    [
        (64, "q8_0", 2, 1015, 17),
        (64, "f16", 1, 0, 1),
        (80, "q4_0", 2, 1023, 2),
        (128, "f16", 1, 15, 16),
        (256, "q8_0", 1, 1024, 1),
        (24, "q4_0", 3, 3, 15),
    ],
)
def test_sketches_are_those_of_ops(device, head_dim, kind, heads, start, n_tokens) -> None:
    cache = Cache(device, keys_of(head_dim, start + n_tokens, heads, head_dim), kind)
    cache.frame, items = frame_of(heads, head_dim), cache.items()
    cache.sketch(start, start + n_tokens)
    sketch_keys(cache.keys(items), cache.layout, start, start + n_tokens)
    for got, want in zip(items, cache.items(), strict=True):
        assert torch.equal(got, want)


def test_rotated_keys_have_the_bits_of_fused_sums(device, fused) -> None:
    """Added in the order of inputs. Signs and f16 show next to nothing of another rounding."""
    cache = Cache(device, keys_of(15, 2, 1, 64), "f16")
    stored = cache.keys(cache.items())
    sketch_keys(stored, cache.layout, 0, 2)
    x, y = stored.rotation.work.cpu().numpy().ravel()[: 2 * 128].reshape(2, 2, 64).swapaxes(0, 1)
    weights = cache.rotation.weights.astype(np.float32)
    want = np.broadcast_to(weights[64 * 64 :], (2, 64))
    for e in range(64):
        row = np.broadcast_to(weights[64 * e : 64 * e + 64], want.shape)
        want = fused(row, np.broadcast_to(x[:, e : e + 1], want.shape), want)
    np.testing.assert_array_equal(y, want)


def test_a_zero_key_has_no_bits_and_the_factor_0(device) -> None:
    """And what lies outside the segments is not written."""
    cache = Cache(device, np.zeros((1024, 1, 64), np.float32), "f16")
    bits, factors = items = cache.items()
    sketch_keys(cache.keys(items), cache.layout, 1020, 1040)
    bits, factors = bits[0].view(1024, 8), factors[0].view(torch.float16)
    assert not bits[1020:].any() and not factors[1020:].any()
    assert (bits[:1020] == 0xA5).all() and (factors[:1020] == -7).all()


def test_keys_are_sketched_in_several_launches(device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "ROWS", 32)
    first, n = 1015, 1060
    cache = Cache(device, keys_of(13, n, 2, 64), "q8_0")
    cache.frame, items = frame_of(2, 64), cache.items()
    cache.sketch(first, n)
    stored = cache.keys(items)
    sketch_keys(stored, cache.layout, first, n)
    assert len(stored.rotation.work) == 32
    for got, want in zip(items, cache.items(), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("head_dim", "kind", "first", "last"),
    [(64, "q8_0", 1000, 1030), (80, "q4_0", 4, 21), (256, "f16", 1023, 1024), (64, "f16", 5, 37)],
)
def test_moments_of_keys_are_those_of_ops(device, head_dim, kind, first, last) -> None:
    cache = Cache(device, keys_of(head_dim, last, 2, head_dim), kind)
    moments = key_moments(cache.kv, cache.layout, 2, first, last)
    wanted = ops.key_moments(cache.places, cache.layout, 2, first, last)
    for got, want in zip(moments, wanted, strict=True):
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_refuses_in_words(device) -> None:
    layout, rotation = TileLayout(64), Rotation.random(64, 5, device)
    kv = torch.zeros((2, layout.segment_bytes(1)), dtype=torch.uint8, device=device)
    bits = torch.zeros((2, 8 * SEGMENT), dtype=torch.uint8, device=device)
    factors = torch.zeros((2, 2 * SEGMENT), dtype=torch.uint8, device=device)
    frame = Frames(device).plain(1, 64)
    stored = ops.SketchedKeys(kv, bits, factors, rotation, frame)
    for said, changed in (
        ("centre is", {"frame": frame._replace(centre=frame.centre[:, :9])}),
        ("segments are", {"segments": kv[:, 1:]}),
        ("bits are", {"bits": bits[:1]}),
        ("factors are", {"factors": bits}),
        ("a rotation of 128", {"rotation": Rotation.random(128, 5, device)}),
    ):
        with pytest.raises(CudaOpsError, match=said):
            sketch_keys(stored._replace(**changed), layout, 0, 1)
    for first, last in ((7, 7), (0, 2049)):
        with pytest.raises(CudaOpsError, match="moments of keys: tokens"):
            key_moments(kv, layout, 1, first, last)
