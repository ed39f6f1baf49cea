"""The variant follows from the CPU's features; what cannot be is refused in words."""

import platform

import pytest

from kvarn.jit import variant
from kvarn.jit.errors import JitError
from kvarn.jit.variant import choose

X86 = frozenset({"avx2", "fma", "f16c"})
VNNI = X86 | {"avx512f", "avx512bw", "avx512vl", "avx512vnni"}


@pytest.mark.parametrize(
    ("features", "machine", "expected"),
    [
        (VNNI, "x86_64", "avx512"),
        (VNNI - {"avx512vnni"}, "x86_64", "avx2"),
        (X86, "AMD64", "avx2"),
        (X86 - {"avx2"}, "x86_64", "generic"),
        (frozenset({"neon", "dotprod"}), "aarch64", "neon"),
        (frozenset({"neon"}), "arm64", "generic"),
        (frozenset(), "riscv64", "generic"),
    ],
)
def test_best_variant_for_the_features(features, machine, expected):
    assert choose(features, machine) == expected
    assert choose(features, machine, "") == expected
    assert choose(features, machine, "generic") == "generic"


@pytest.mark.parametrize("lacking", ["f16c", "fma"])
def test_old_x86_is_refused(lacking):
    with pytest.raises(JitError, match=f"no {lacking}"):
        choose(X86 - {lacking}, "x86_64")


def test_unknown_and_unsupported_variants_are_refused_in_words():
    with pytest.raises(JitError, match=r"KVARN_SIMD=sse.*expected one of avx2, generic"):
        choose(X86, "x86_64", "sse")
    with pytest.raises(JitError, match=r"lacks avx512bw.*can run avx2, generic"):
        choose(X86, "x86_64", "avx512")


def test_this_process_runs_a_variant_that_its_cpu_can():
    assert variant.NEEDS[variant.VARIANT] <= variant.FEATURES
    assert choose(variant.FEATURES, platform.machine(), variant.VARIANT) == variant.VARIANT
