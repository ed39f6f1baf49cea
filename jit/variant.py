"""The variant of all kernels, chosen once per process by the CPU's features.

    avx512   x86 with AVX-512 BW, VL and VNNI: 32 registers of 512 bits, `vpdpbusd`
    avx2     x86 with AVX2: 16 registers of 256 bits, `vpmaddubsw` + `vpmaddwd`
    neon     aarch64 with the dot product extension: 32 registers of 128 bits, `sdot`/`udot`
    generic  any CPU: vector code without instructions of its own, which LLVM lowers

`KVARN_SIMD=<name>` chooses another variant that the CPU can run, for tests. Imports no Numba.
"""

import os
import platform

from . import bundled, host, machine
from .errors import JitError

# The CPU features that each variant needs, by LLVM's names, best variant first.
NEEDS: dict[str, frozenset[str]] = {
    "avx512": frozenset({"avx512f", "avx512bw", "avx512vl", "avx512vnni"}),
    "avx2": frozenset({"avx2"}),
    "neon": frozenset({"neon", "dotprod"}),
    "generic": frozenset(),
}


CHOSEN = {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX"}
"""Variables of the environment that choose the CPU."""


def target() -> tuple[str, str]:
    """LLVM's name of the CPU that Numba compiles for (`znver3`) and its features (`+avx,-sse4a`).

    This CPU, unless NUMBA_CPU_NAME, NUMBA_CPU_FEATURES or NUMBA_ENABLE_AVX say otherwise. If the
    installation has kernels that were compiled ahead (`bundled`), the best of their CPUs whose code
    this CPU can run, of the variant that KVARN_SIMD asks for. Then LLVM is not imported.
    """
    if not CHOSEN & os.environ.keys():
        forced = os.environ.get("KVARN_SIMD")
        for bundled_target in bundled.targets():
            best = next(name for name, needs in NEEDS.items() if needs <= bundled_target.needs)
            if forced in (None, "", best) and bundled_target.runs_on(host_features()):
                return bundled_target
        return host.described()
    from llvmlite import binding as llvm

    name = os.environ.get("NUMBA_CPU_NAME")
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None and name == "generic":
        features = ""
    if features is None:
        flags = host.flags()
        if os.environ.get("NUMBA_ENABLE_AVX") == "0":
            flags.update({feature: False for feature in flags if feature.startswith("avx")})
        features = host.flatten(flags)
    return name or llvm.get_host_cpu_name(), features


def host_features() -> frozenset[str]:
    """This CPU's features, by LLVM's names: those that the system lists, else LLVM's own list."""
    return machine.features() or frozenset(name for name, has in host.flags().items() if has)


def choose(features: frozenset[str], machine: str, forced: str | None = None) -> str:
    """The best variant for a CPU with these features, or `forced` (the value of KVARN_SIMD).

    Raises JitError where the CPU lacks a feature that all variants need, or the forced one.
    """
    if machine in ("x86_64", "AMD64"):
        # Without F16C, LLVM calls a conversion function that does not exist: the process aborts.
        lacking = sorted({"f16c", "fma"} - features)
        if lacking:
            raise JitError(
                f"choosing the kernels: this CPU has no {' and '.join(lacking)}; kvarn needs an "
                "x86 CPU of 2013 or later (Intel Haswell, AMD Excavator), or a virtual machine "
                "that passes these features on"
            )
    possible = [name for name, needs in NEEDS.items() if needs <= features]
    if not forced:
        return possible[0]
    if forced not in NEEDS:
        raise JitError(
            f"KVARN_SIMD={forced}: no such variant, expected one of {', '.join(possible)}"
        )
    if forced not in possible:
        raise JitError(
            f"KVARN_SIMD={forced}: this CPU lacks {', '.join(sorted(NEEDS[forced] - features))}; "
            f"it can run {', '.join(possible)}"
        )
    return forced


CPU, LISTED = target()
FEATURES = frozenset(feature[1:] for feature in LISTED.split(",") if feature.startswith("+"))
VARIANT = choose(FEATURES, platform.machine(), os.environ.get("KVARN_SIMD"))


def pretend(variant: str, features: frozenset[str]) -> None:
    """Build kernels for another CPU, to look at their assembly (`lower`).

    Call it before `simd` is imported, in a process that runs no kernels.
    """
    global VARIANT, FEATURES
    VARIANT, FEATURES = variant, features
