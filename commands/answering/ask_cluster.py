"""`kvarn ask --packs FOLDER --ray`: a question to the packs of all machines of a Ray cluster."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from ...cluster.asking import ClusterAsker, Shelves
from ...cluster.queue import Queue
from ...cluster.ray_start import connected
from ...cluster.ray_workers import RayWorkers
from ...cluster.shelf import ShelfConfig
from ...runtime.context.planning.request import ContextRequest
from ...system.errors import KvarnError, WrongUsage
from ...system.spelling import as_flag
from ...system.terminal import generate, say, show, show_json
from ..terminal.progress import progress_bar
from .best_packs import tell_fits
from .endings import tell_end


def ask_on_ray(options: argparse.Namespace, sampling: dict[str, Any]) -> int:
    """Writes the answers when they are whole, the best first. sampling: see `Sampler`."""
    if options.packs or not options.folders:
        raise WrongUsage("--ray asks the packs of a folder: kvarn ask --packs FOLDER QUESTION")
    folders = tuple(folder.absolute() for folder in options.folders)
    config = ShelfConfig(
        folders,
        ContextRequest.of({**vars(options), "pack": str(folders[0] / "PACK")}, as_flag),
        options.question,
        options.model and options.model.absolute(),
        sampling,
        options.max_tokens,
        options.stop,
        options.system,
        options.passages,
    )
    best, per_node = options.best or 1, options.ray_workers or 1
    with connected(options.ray, per_node, options.threads) as ray:
        shelves = Shelves(say)
        queue = Queue(RayWorkers(ray, config, per_node, options.threads), shelves, say)
        asker = ClusterAsker(queue, shelves, say)
        with progress_bar("comparing packs", "pack") as progress:
            gains = asker.gains(progress)
        fits = [(shelves.packs[id].path.name, gain) for id, gain in gains.items()]
        tell_fits(len(shelves.packs), fits, best)
        answers = asker.answers(gains, best)
    if not answers:
        raise KvarnError("no pack has answered: no machine that has one is left")
    rows = []
    for n, one in enumerate(answers):
        rows.append(
            {
                "pack": str(one.pack.path),
                "node": one.node,
                "model": one.pack.head.model,
                "gain": one.gain,
                **asdict(one.answer),
            }
        )
        if not options.json:
            show(f"{one.pack.path} on {one.node}:")
            generate(f"{one.answer.text}\n")
            tell_end(one.answer, options.passages)
            if n + 1 < len(answers):
                show("")
    if options.json:
        show_json({"question": options.question, "answers": rows})
    return 0
