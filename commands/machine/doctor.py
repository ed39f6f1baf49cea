"""`kvarn doctor`: what this machine has, what slows kvarn down on it, and how to fix that."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ... import __version__
from ...cuda_ops import machine
from ...ops import diagnostics
from ...runtime.engine import on_engine
from ...runtime.loading.devices import card_for
from ...runtime.memory import human_bytes
from ...system.errors import KvarnError
from ...system.terminal import say, show
from ...system.text import one_line
from . import fitting

_PACKAGES = ("numba", "llvmlite", "numpy", "gguf", "jinja2")
_GIB = 1 << 30
_BUSY_REGION = 30  # µs; idle machines need 1 to 3


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show versions, CPU, threads, memory, the cache of compiled kernels and the GPU. Show "
        "each problem and how to fix it."
    )
    parser.epilog = (
        "KVARN_SIMD=avx512|avx2|neon|generic forces a kernel variant other than the best "
        "for the CPU. KVARN_CACHE=FOLDER is where compiled kernels are kept. kvarn also obeys "
        "NUMBA_THREADING_LAYER and NUMBA_NUM_THREADS."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--roofline",
        action="store_true",
        help="measure read bandwidth and the kernels' speed beside it (about 20 s, 1 GiB)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="first compile the kernels of --device cuda for the GPU, which takes minutes "
        "(default: when they are first used)",
    )
    fitting.add_fit_options(parser)


def run(options: argparse.Namespace) -> int:
    if options.fit is not None:
        facts = fitting.report(options)
        show(json.dumps(facts, indent=2) if options.json else fitting.render(facts))
        return 0
    fitting.check_unused(options)
    if options.compile:
        on_engine(compile_for_gpu)
    report = on_engine(examine, roofline=options.roofline)
    show(json.dumps(report, indent=2) if options.json else render(report))
    return 0 if "threads" in report else 1


def compile_for_gpu() -> None:
    """Compile the GPU's kernels into the cache; `KvarnError` without a GPU that can be used."""
    card = card_for("cuda")
    assert card is not None
    import torch

    from ...cuda_ops.device import CudaDevice
    from ...cuda_ops.warm import compile_all

    n = compile_all(CudaDevice(torch.device("cuda")), say)
    say(f"compiled {n} calls of kernels for {card.name}")


def examine(roofline: bool = False) -> dict[str, Any]:
    """All that `doctor` shows: sections of facts, and `problems` as {what, mend}."""
    report: dict[str, Any] = {
        "versions": _versions(),
        "cpu": diagnostics.cpu(),
        "memory": diagnostics.memory(),
        "gpu": _gpu(),
    }
    problems = list(_system_problems(report))
    try:
        report["cpu"] |= diagnostics.variant()
        report["threads"] = diagnostics.threads()
        report["cache"] = diagnostics.cache()
        if roofline:
            report["roofline"] = diagnostics.roofline()
    except KvarnError as error:
        problems.append(_problem(str(error), "no kernel runs until this is fixed"))
    else:
        problems += _kernel_problems(report)
    return {**report, "problems": problems}


def _gpu() -> dict[str, Any]:
    """What is here for `--device cuda`, and why it cannot be used ("" if it can)."""
    facts = machine.look()
    return {**facts.as_dict(), "against": machine.refusal(facts) or ""}


def _versions() -> dict[str, str]:
    versions = {"kvarn": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "missing"
    return {**versions, "system": f"{platform.system()} {platform.release()} {platform.machine()}"}


def _system_problems(report: dict[str, Any]) -> Iterator[dict[str, str]]:
    memory, cpu = report["memory"], report["cpu"]
    for package, installed in report["versions"].items():
        if installed == "missing":
            yield _problem(f"the package {package} is missing", f"pip install {package}")
    if memory["available_bytes"] < _GIB:
        yield _problem(
            f"only {human_bytes(memory['available_bytes'])} of memory is available",
            "close other programs, or use smaller models and contexts",
        )
    if memory["huge_pages"] == "never":
        yield _problem(
            "huge pages are off, so long contexts cost more",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    quota = cpu["quota_cpus"]
    if quota is not None and quota < cpu["cores"]:
        yield _problem(
            f"the container may use {quota:g} of {cpu['cores']} cores",
            "raise its CPU limit (docker run --cpus, resources.limits.cpu)",
        )


def _kernel_problems(report: dict[str, Any]) -> Iterator[dict[str, str]]:
    from ...jit import variant
    from ...jit.threads import HOW_TO_FIX

    threads, cache, name = report["threads"], report["cache"], report["cpu"]["variant"]
    if name == "generic":
        fix = (
            "unset KVARN_SIMD"
            if "KVARN_SIMD" in os.environ
            else (
                "use a CPU with AVX2 or the NEON dot product; in a virtual machine, pass on the "
                "host's CPU features"
            )
        )
        yield _problem("the generic kernels are several times slower", fix)
    elif os.environ.get("KVARN_SIMD"):
        best = variant.choose(variant.FEATURES, platform.machine())
        if best != name:
            yield _problem(f"KVARN_SIMD={name} is slower than {best}", "unset KVARN_SIMD")
    if threads["layer"] == "workqueue" and threads["most"] > 1:
        yield _problem(
            f"starting the kernel threads takes {threads['region_microseconds']:.0f} µs instead of "
            "1: they are Numba's workqueue threads",
            HOW_TO_FIX,
        )
    elif threads["region_microseconds"] > _BUSY_REGION:
        yield _problem(
            f"starting the kernel threads takes {threads['region_microseconds']:.0f} µs instead of "
            "1: other programs keep the CPUs busy",
            "end them, or use fewer --threads",
        )
    for reason in cache["not_usable"]:
        yield _problem(f"compiled kernels cannot be kept: {reason['what']}", reason["mend"])
    if cache["folder"] and cache["disk_free_bytes"] < _GIB:
        yield _problem(
            f"only {human_bytes(cache['disk_free_bytes'])} of disk are free at {cache['folder']}",
            "make room, or set KVARN_CACHE to a folder on another disk",
        )


def _problem(problem: str, fix: str) -> dict[str, str]:
    return {"what": problem, "mend": fix}


def render(report: dict[str, Any]) -> str:
    """The report as lines of text, problems last."""
    versions, cpu, memory = report["versions"], report["cpu"], report["memory"]
    packages = ", ".join(f"{name} {versions[name]}" for name in _PACKAGES)
    quota = f", at most {cpu['quota_cpus']:g} of them at a time" if cpu["quota_cpus"] else ""
    usable = f"{cpu['logical_cpus']} of {cpu['machine_cpus']} logical CPUs{quota}"
    lines = [
        ("kvarn", f"{versions['kvarn']}, Python {versions['python']}, {versions['system']}"),
        ("packages", packages),
        ("CPU", f"{cpu['name']}: {cpu['cores']} cores, {usable}"),
    ]
    if "variant" in cpu:
        lines += [
            ("features", f"{' '.join(cpu['features']) or 'none of interest'} ({cpu['llvm_name']})"),
            ("kernels", f"{cpu['variant']}: {cpu['why']}"),
        ]
    free, total = (human_bytes(memory[name]) for name in ("available_bytes", "total_bytes"))
    lines.append(("memory", f"{free} available of {total}; huge pages: {memory['huge_pages']}"))
    if gpu := report.get("gpu"):
        lines += _gpu_lines(gpu)
    if threads := report.get("threads"):
        number = f"{threads['default']} (1 to {threads['most']})"
        cost = f"started in {threads['region_microseconds']:.1f} µs"
        lines.append(("threads", f"{number}, layer {threads['layer']}, {cost}"))
    if cache := report.get("cache"):
        others = [folder for folder in cache["read"] if folder != cache["folder"]]
        state = (
            f"{cache['folder']}: {cache['n_kernels']} kernels, {human_bytes(cache['n_bytes'])}; "
            f"{human_bytes(cache['disk_free_bytes'])} free"
            if cache["folder"]
            else "none: every process compiles its kernels anew"
        )
        lines.append(("cache", state))
        lines += [("", f"{folder} is read, too") for folder in others]
    if roofline := report.get("roofline"):
        lines += _roofline_lines(roofline)
    text = [f"{name:<9} {one_line(value)}" for name, value in lines]
    problems = report["problems"]
    text += [f"\nproblem: {one_line(p['what'])}\n    fix: {one_line(p['mend'])}" for p in problems]
    return "\n".join([*text, *([] if problems else ["\nno problems found"])])


def _gpu_lines(gpu: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for card in gpu["cards"]:
        free, total = human_bytes(card["free_bytes"]), human_bytes(card["total_bytes"])
        capability = f"compute capability {card['capability']}"
        yield "GPU", f"{card['name']}: {free} free of {total}; {capability}"
    if not gpu["cards"]:
        yield "GPU", "none that can be used"
    driver = (
        f"driver {gpu['driver'] or 'of unknown version'} for CUDA {gpu['driver_cuda']}"
        if gpu["driver_cuda"]
        else "no NVIDIA driver"
    )
    torch = "no PyTorch"
    if gpu["torch"]:
        built = f"for CUDA {gpu['cuda']}" if gpu["cuda"] else "without CUDA"
        torch = f"PyTorch {gpu['torch']} " + ("that is broken" if gpu["broken"] else built)
    triton = f"Triton {gpu['triton']}" if gpu["triton"] else "no Triton"
    yield "", f"{driver}, {torch}, {triton}, C compiler: {gpu['compiler'] or 'none'}"
    yield "", gpu["against"] or "--device cuda can be used"


def _roofline_lines(roofline: dict[str, Any]) -> Iterator[tuple[str, str]]:
    best = max(roofline["read"].values())
    for n, rate in roofline["read"].items():
        yield "reading", f"{rate / 1e9:6.1f} GB/s with {n} thread{'s' if n != '1' else ''}"
    for kernel, whose in (("matvec", "weights"), ("attention", "keys and values")):
        for name, rate in roofline[kernel].items():
            share = f"{rate / best:.0%} of the best reading"
            yield kernel, f"{rate / 1e9:6.1f} GB/s of {name} {whose}, {share}"
    yield "products", f"{roofline['dots'] / 1e9:6.0f} Gop/s of int8 in registers, the CPU's limit"
    for name, rate in roofline["matmul"].items():
        share = f"{roofline['share_of_dots'][name]:.0%} of the limit beside it"
        yield "matmul", f"{rate / 1e9:6.0f} Gop/s with {name} weights, 512 tokens at once, {share}"
