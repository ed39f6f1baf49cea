"""`kvarn pack build --ray`: many texts, or the blocks of one, read on machines of a Ray cluster."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from tempfile import NamedTemporaryFile

from ...cluster.blocks import AnyNode, BlockReaderConfig, read_blocks
from ...cluster.jobs import Outcome
from ...cluster.queue import Queue
from ...cluster.ray_start import connected
from ...cluster.ray_workers import RayWorkers
from ...cluster.reading import HomeNodes, ReaderConfig, read_texts
from ...runtime.home import make_folder, pack_path
from ...runtime.memory import human_bytes
from ...runtime.prefill import BlocksPrefill
from ...runtime.store import Disk
from ...runtime.store.disk.info import pack_info
from ...system.errors import KvarnError
from ...system.terminal import say
from ..options.context import request_from
from ..options.model import ModelRequest
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import Elapsed
from .pack_each import describe, packs_of

_SHOWN = 4
"""Texts that are being read which one line names."""


def build_each_on_ray(options: argparse.Namespace) -> int:
    """Exit code 1 if a file has no pack at the end; a line says why."""
    files = packs_of(options.files, options.output)
    config = _reader_config(options, next(iter(files)))
    named = {pack.name: file for pack, file in files.items()}
    n_failed, began, homes = 0, time.perf_counter(), Counter[str]()
    stopped = f"stopped: {config.folder} keeps what was read; run the same command to resume"
    per_node, threads = options.ray_workers or 1, options.threads
    with on_ctrl_c(lambda: stopped), connected(options.ray, per_node, threads) as ray:
        queue = Queue(RayWorkers(ray, config, per_node, threads), HomeNodes(), say)
        with Elapsed(lambda: _progress(queue)) as elapsed:
            for n_done, outcome in enumerate(read_texts(queue, named), 1):
                elapsed.clear()
                made, line = _describe(outcome, named[outcome.key])
                homes[outcome.node] += made
                n_failed += not made
                say(f"{n_done} of {len(files)}: {line}")
    seconds, n_made = time.perf_counter() - began, len(files) - n_failed
    say(f"{options.output}: {n_made} of {len(files)} files have a pack, {seconds:.1f} s")
    if n_made:
        read_by = ", ".join(f"{n} by {node}" for node, n in sorted((+homes).items()))
        say(f"packs are in {config.folder} of the machine that read them: {read_by}")
    return int(n_failed > 0)


def build_blocks_on_ray(options: argparse.Namespace, prefill: BlocksPrefill, text: str) -> int:
    """Reads one text, whose pack is in a folder that the machines and this one share."""
    pack = pack_path(options.output).absolute()
    began, homes = time.perf_counter(), Counter[str]()
    stopped = f"stopped: {pack} keeps what was read; run the same command to resume"
    per_node, threads = options.ray_workers or 1, options.threads
    config = _reader_config(options, pack)
    make_folder(pack.parent)
    with (
        NamedTemporaryFile(dir=pack.parent, prefix=".kvarn-") as mark,
        on_ctrl_c(lambda: stopped),
        connected(options.ray, per_node, threads) as ray,
    ):
        blocks = BlockReaderConfig(config, pack.name, text, prefill, Path(mark.name).name)
        queue = Queue(RayWorkers(ray, blocks, per_node, threads), AnyNode(), say)
        with Elapsed(lambda: _progress(queue, "block")) as elapsed:
            for outcome in read_blocks(queue):
                elapsed.clear()
                _, n_read = outcome.result
                homes[outcome.node] += n_read
                say(f"{outcome.node}: {outcome.key}, {n_read:,} tokens read")
    seconds, info = time.perf_counter() - began, pack_info(pack)
    read_by = ", ".join(f"{n:,} by {node}" for node, n in sorted((+homes).items()))
    size = f"{info.n_tokens:,} tokens, {human_bytes(info.n_bytes)}"
    say(f"{pack}: {size}, read in {seconds:.1f} s: {read_by or 'all were there'}{info.reading}")
    return 0


def _reader_config(options: argparse.Namespace, pack: Path) -> ReaderConfig:
    """How workers read into packs of the folder of that pack."""
    source, request, head = ModelRequest.of(options), request_from(options), Disk(pack).head()
    return ReaderConfig(
        pack.parent.absolute(),
        source.file(head).absolute(),
        source.adapters(head),
        request.n_ctx,
        request.prefill,
        request.attend,
        options.kv_type,
    )


def _describe(outcome: Outcome, file: Path) -> tuple[bool, str]:
    """Whether there is a pack, and a line about it."""
    where = f"{outcome.node}: " if outcome.node else ""
    if isinstance(outcome.result, KvarnError):
        return False, f"{where}{file}: {outcome.result}"
    for line in outcome.result.lines:
        say(f"{where}{line}")
    became = outcome.result.outcome
    return not isinstance(became.pack, KvarnError), where + describe(became, file)


def _progress(queue: Queue, unit: str = "text") -> str:
    """What the workers are at."""
    at = list(queue.running.values())
    if not at:
        return "starting workers"
    parts = [f"{one.job.key} {one.done:,} of {one.total:,} tokens" for one in at if one.total]
    more = ", …" if len(parts) > _SHOWN else ""
    n_units = f"1 {unit}" if len(at) == 1 else f"{len(at)} {unit}s"
    return f"reading {n_units}: {', '.join(parts[:_SHOWN]) or 'not begun'}{more}"
