"""`kvarn pack build --each --ray`: a folder of packs, read on all machines of a Ray cluster."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from ...cluster.jobs import Outcome
from ...cluster.queue import Queue
from ...cluster.ray_start import connected
from ...cluster.ray_workers import RayWorkers
from ...cluster.reading import Homes, Reading, read_texts
from ...runtime.store import Disk
from ...system.errors import KvarnError
from ...system.terminal import say
from ..options.context import request_from
from ..options.model import ModelRequest
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import Elapsed
from .pack_each import packs_of, told

_SHOWN = 4
"""Texts that are being read which one line names."""


def build_each_on_ray(options: argparse.Namespace) -> int:
    """Exit code 1 if a file has no pack at the end; a line says why."""
    files = packs_of(options.files, options.output)
    source, request = ModelRequest.of(options), request_from(options)
    first = next(iter(files))
    head = Disk(first).head()
    reading = Reading(
        first.parent.absolute(),
        source.file(head).absolute(),
        source.adapters(head),
        request.n_ctx,
        request.prefill,
        request.attend,
        options.kv_type,
    )
    named = {pack.name: file for pack, file in files.items()}
    n_failed, began, homes = 0, time.perf_counter(), Counter[str]()
    stopped = f"stopped: {reading.folder} keeps what was read; run the same command to resume"
    per_node, threads = options.ray_workers or 1, options.threads
    with on_ctrl_c(lambda: stopped), connected(options.ray, per_node, threads) as ray:
        queue = Queue(RayWorkers(ray, reading, per_node, threads), Homes(), say)
        with Elapsed(lambda: _progress(queue)) as elapsed:
            for n_done, outcome in enumerate(read_texts(queue, named), 1):
                elapsed.clear()
                made, line = _told(outcome, named[outcome.key])
                homes[outcome.node] += made
                n_failed += not made
                say(f"{n_done} of {len(files)}: {line}")
    seconds, n_made = time.perf_counter() - began, len(files) - n_failed
    say(f"{options.output}: {n_made} of {len(files)} files have a pack, {seconds:.1f} s")
    if n_made:
        read_by = ", ".join(f"{n} by {node}" for node, n in sorted((+homes).items()))
        say(f"packs are in {reading.folder} of the machine that read them: {read_by}")
    return int(n_failed > 0)


def _told(outcome: Outcome, file: Path) -> tuple[bool, str]:
    """Whether there is a pack, and a line about it."""
    where = f"{outcome.node}: " if outcome.node else ""
    if isinstance(outcome.result, KvarnError):
        return False, f"{where}{file}: {outcome.result}"
    for line in outcome.result.lines:
        say(f"{where}{line}")
    became = outcome.result.outcome
    return not isinstance(became.pack, KvarnError), where + told(became, file)


def _progress(queue: Queue) -> str:
    """What the workers are at."""
    at = list(queue.doing.values())
    if not at:
        return "starting workers"
    parts = [f"{one.job.key} {one.done:,} of {one.total:,} tokens" for one in at if one.total]
    more = ", …" if len(parts) > _SHOWN else ""
    n_texts = "1 text" if len(at) == 1 else f"{len(at)} texts"
    return f"reading {n_texts}: {', '.join(parts[:_SHOWN]) or 'not begun'}{more}"
