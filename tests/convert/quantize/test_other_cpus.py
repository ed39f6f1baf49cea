"""On CPUs that are not here, blocks are encoded by vectors, without library calls."""

from __future__ import annotations

import re

from numba import types

from kvarn.convert.quantize.kernels.blocks import rounded_block
from kvarn.convert.quantize.kernels.superblocks import offset_encoder
from kvarn.jit.cached import jit

from ...jit.lower import lower

_q4_k, _q5_0 = offset_encoder("Q4_K"), rounded_block("Q5_0")
_CALLS = r"__\w+hf2|__\w+sf2|\brintf\b"


@jit
def block_q4_k(x, w, work, out):
    _q4_k(x, w, work, out)


@jit
def block_q5_0(x, w, work, out):
    _q5_0(x, w, work, out)


def instructions(kernel, target):
    assembly = lower(kernel, (types.int64,) * 4, target)
    assert not re.findall(_CALLS, assembly)
    return set(re.findall(r"^\t(\w+)", assembly, re.MULTILINE)), assembly


def test_searches_are_vectors():
    names, assembly = instructions(block_q4_k, "neon")
    assert names >= {"fmla", "frintx", "fminnm"}
    assert ".4s" in assembly


def test_rounding_fuses_nothing():
    """Fused products and sums would give other bytes than ggml's where codes are ties."""
    names, _ = instructions(block_q5_0, "neon")
    assert not names & {"fmla", "fmls", "fmadd", "fmsub"}
