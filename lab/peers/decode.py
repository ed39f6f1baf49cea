"""Decode of short contexts beside llama.cpp and ik_llama.cpp, for models that people have.

    python -m lab.peers.decode MODEL.gguf … [--tokens 150] [--rounds 3]

Each runtime decodes in a process of its own, one after the other in every round, and the memory is
read in between. Medians of all tokens of all rounds; "of memory": the share of the tokens per
second that are possible if the file is read once a token. Needs llama-cpp-python and
ik-llama-cpp-python; one that is not installed is left out, and a line says so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import kvarn
from kvarn.ops.measure import read_rate
from kvarn.runtime.engine import on_engine

Step = Callable[[int], object]
N_CTX, FIRST_ID = 1024, 100


def kvarn_step(path: str, threads: int) -> Step:
    context = kvarn.load(path, threads=threads).context(N_CTX)
    context.prefill([FIRST_ID])
    return context.decode


def llama_step(path: str, threads: int) -> Step:
    import llama_cpp as c

    peer = c.Llama(path, n_ctx=N_CTX, n_threads=threads, verbose=False)
    handle: Any = peer.ctx

    def step(token: int) -> None:
        if c.llama_decode(handle, c.llama_batch_get_one((ctypes.c_int32 * 1)(token), 1)):
            raise RuntimeError("llama_decode failed")
        c.llama_synchronize(handle)
        assert peer.ctx  # holds what the handle points to

    return step


def ik_llama_step(path: str, threads: int) -> Step:
    from ik_llama_cpp.llama import C, IkLlama, make_batch_single

    peer, position = IkLlama(path, n_ctx=N_CTX, n_threads=threads, verbose=False), 0

    def step(token: int) -> None:
        nonlocal position
        batch = make_batch_single(token, position)
        if peer._context.decode(batch):
            raise RuntimeError("llama_decode failed")
        peer._context.get_logits()
        C.llama_batch_free(batch)
        position += 1

    return step


PEERS: dict[str, tuple[str, Callable[[str, int], Step]]] = {
    "kvarn": ("kvarn", kvarn_step),
    "llama.cpp": ("llama_cpp", llama_step),
    "ik_llama.cpp": ("ik_llama_cpp", ik_llama_step),
}
"""Name → the module that it needs, and what makes its step: decode one token."""


def seconds_of(name: str, path: str, threads: int, n_tokens: int) -> list[float]:
    """Seconds of each token, in a process of its own."""
    command = [sys.executable, "-m", "lab.peers.decode", path, "--only", name]
    numbers = ["--threads", str(threads), "--tokens", str(n_tokens)]
    done = subprocess.run([*command, *numbers], capture_output=True, text=True, check=True)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def timed(step: Step, n_tokens: int) -> list[float]:
    seconds = []
    for token in range(FIRST_ID, FIRST_ID + n_tokens):
        began = time.perf_counter()
        step(token)
        seconds.append(time.perf_counter() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", choices=PEERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        step = PEERS[options.only][1](str(options.models[0]), options.threads)
        print(json.dumps(timed(step, options.tokens)))
        return
    names = [name for name, (module, _) in PEERS.items() if find_spec(module)]
    for name in PEERS.keys() - names:
        print(f"{name} is not installed, and left out")
    for path in options.models:
        rates: list[float] = []
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(options.rounds):
            for name in names:
                seconds[name] += seconds_of(name, str(path), options.threads, options.tokens)
            rates.append(on_engine(read_rate))
        possible = median(rates) / path.stat().st_size
        print(f"{path.name}, memory {median(rates) / 1e9:.1f} GB/s")
        for name in names:
            speed = 1 / median(seconds[name])
            print(f"  {name:13} {speed:6.1f} tokens/s   {speed / possible:.0%} of memory")


if __name__ == "__main__":
    main()
