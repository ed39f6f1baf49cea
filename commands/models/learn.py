"""`kvarn learn`: hash encoders for a model, which `--method hash` then finds by itself."""

from __future__ import annotations

import argparse
import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ...runtime.attend.encoders.sidecar import sidecar_path, write_sidecar
from ...runtime.engine import on_engine
from ...runtime.store import Ram
from ...system.errors import KvarnError
from ...system.extras import how_to_install
from ...system.terminal import say, show
from ..opening import Workload, load_model
from ..options.context import add_kv_type_option
from ..options.files import check_output
from ..options.model import ModelRequest
from ..options.model_options import add_threads_option
from ..options.values import count, positive, seed
from ..terminal.interrupt import Interruptible, ReadingStopped
from ..terminal.progress import duration
from ..terminal.tables import columns

if TYPE_CHECKING:
    from ...convert.learn.learning import Learning, Progress
    from ...convert.learn.recall import Recall
    from ...runtime.model import Model

LENGTH = 16_384
TOKENS = 500_000
REPORTED = 32  # chunks between two lines of progress
SAVED = 120.0  # seconds between two checkpoints
LOSSES = ("softmax", "bce")


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read text with the model and train, on its own queries and keys, small "
        "networks whose signatures tell which tokens matter (HashAttention). `--method hash` finds "
        "MODEL.hash.gguf beside MODEL.gguf by itself. If interrupted, run the same command to "
        f"resume. Needs torch: {how_to_install('train')}."
    )
    parser.add_argument("model", metavar="MODEL", type=Path, help="a GGUF file")
    parser.set_defaults(hf=None)
    parser.add_argument(
        "--text",
        metavar="FILE",
        type=Path,
        action="extend",
        nargs="+",
        required=True,
        help="UTF-8 texts like those that the model will read; a share is held out",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="default: MODEL.hash.gguf beside the model",
    )
    _add_training(parser)
    add_threads_option(parser)
    add_kv_type_option(parser)
    parser.add_argument("--json", action="store_true", help="print the final table as JSON")


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("learning")
    group.add_argument(
        "--bits",
        metavar="N",
        type=positive,
        default=64,
        help="bits of a signature: 32, 64 (default)",
    )
    group.add_argument(
        "--hidden",
        metavar="N",
        type=count,
        default=0,
        help="units of two hidden layers: 128 as in the paper; 0: linear encoders, which find as "
        "much and are smaller (default)",
    )
    group.add_argument(
        "--tokens",
        metavar="N",
        type=positive,
        help=f"tokens to read (default {TOKENS:,}, in whole contexts; texts are repeated)",
    )
    group.add_argument(
        "--length",
        metavar="N",
        type=positive,
        help="tokens of a context: take the length that you will use, as encoders do not "
        "generalise far beyond it "
        f"(default {LENGTH:,}, or the model's training length if that is less)",
    )
    for name, which in (("sink", "first"), ("window", "last")):
        group.add_argument(
            f"--{name}",
            metavar="N",
            type=positive,
            default=128,
            help=f"the {which} N tokens are always read, so they need not be found (default 128)",
        )
    group.add_argument(
        "--steps",
        metavar="N",
        type=positive,
        default=4,
        help="training steps for each chunk (default 4)",
    )
    group.add_argument(
        "--loss",
        choices=LOSSES,
        default="softmax",
        help="softmax: each label against all other tokens (default); bce: the paper's "
        "cross-entropy",
    )
    group.add_argument("--seed", metavar="N", type=seed, default=0, help="random seed (default 0)")


def run(options: argparse.Namespace) -> int:
    if find_spec("torch") is None:
        raise KvarnError(
            f"kvarn learn needs torch, which is not installed: {how_to_install('train')}"
        )
    output = options.output or sidecar_path(options.model)
    checkpoint = output.with_name(f"{output.name}.checkpoint")
    for path in (output, checkpoint):
        check_output(path, options.model, *options.text)
    ram = Ram(*(options.kv_type or ()))
    model = load_model(ModelRequest.of(options), Workload(ram.types()))
    learning = _learning(options, model, ram, checkpoint)
    learning.save()  # if this fails, it fails before hours of work
    with Interruptible(rises=False) as interrupt:
        try:
            _learn(learning, interrupt)
            learning.save()
            write_sidecar(output, learning.learned, model.file.architecture)
            say(f"wrote {output}; measuring it on text that was held out …")
            recalls = learning.recalls(interrupt.progress)
        except ReadingStopped:
            learning.save()
            raise KeyboardInterrupt(
                f"stopped: {checkpoint} keeps what was learned; run the same command to resume"
            ) from None
    learning.checkpoint.remove()
    show(_as_json(recalls, output) if options.json else _as_text(recalls))
    return 0


def _learning(options: argparse.Namespace, model: Model, ram: Ram, checkpoint: Path) -> Learning:
    import torch

    from ...convert.learn.learning import Learning
    from ...convert.learn.settings import Settings
    from ...convert.learn.texts import Texts
    from ...jit.threads import n_threads

    torch.set_num_threads(on_engine(n_threads))
    length = options.length or min(LENGTH, model.config.n_ctx_train)
    settings = Settings(
        length=length,
        tokens=options.tokens or max(TOKENS, length),
        bits=options.bits,
        hidden=options.hidden,
        sink=options.sink,
        window=options.window,
        loss=options.loss,
        steps=options.steps,
        seed=options.seed,
    )
    texts = Texts(options.text, model.tokenizer, length, options.seed)
    learning = Learning(model, texts, settings, ram, checkpoint)
    done = f"going on after {learning.done} of " if learning.done else ""
    say(
        f"{len(texts):,} tokens of text; {done}{settings.n_chunks} chunks, contexts of "
        f"{length:,} tokens, {texts.n_held_out} of them held out for the measurement"
    )
    return learning


def _learn(learning: Learning, interrupt: Interruptible) -> None:
    """Learn to the end; show a line and save a checkpoint now and then."""
    import numpy as np

    saved, told, figures = time.monotonic(), False, []

    def progress(at: Progress) -> None:
        nonlocal saved, told
        if at.layers:
            figures.append(list(at.layers.values()))
        if not told and (left := learning.seconds_left) is not None:
            told = True
            interrupt.clear_bar()
            say(f"some {duration(left)} to go, by the first context and step")
        if len(figures) == REPORTED or (at.n_tokens == at.all_tokens and figures):
            interrupt.clear_bar()
            say(_line(at, np.mean(figures, 0).tolist()))
            figures.clear()
        if time.monotonic() - saved > SAVED:
            learning.save()
            saved = time.monotonic()
        interrupt.progress(at.n_tokens, at.all_tokens)

    learning.run(progress)


def _line(at: Progress, means: list[tuple[float, float]]) -> str:
    layers = ", ".join(
        f"{number}: {loss:.3f} {share:.0%}" for number, (loss, share) in zip(at.layers, means)
    )
    return f"{at.n_tokens:,} of {at.all_tokens:,} tokens; loss and labels in the best 1% {layers}"


def _as_json(recalls: list[Recall], output: Path) -> str:
    from ...convert.learn.learning import table

    return json.dumps({"file": str(output), "recall": table(recalls)}, indent=2)


def _as_text(recalls: list[Recall]) -> str:
    """A row per layer, a column per method: the share of the best 1% and 2% that is found."""
    methods = list(dict.fromkeys(recall.method for recall in recalls))
    shares = {(recall.layer, recall.method): recall.values for recall in recalls}
    rows = [
        (f"{layer}", *(" / ".join(f"{x:.1%}" for x in shares[layer, name]) for name in methods))
        for layer in sorted({recall.layer for recall in recalls})
    ]
    shown = columns([("layer", *methods), *rows], ">" * (1 + len(methods)))
    return f"share of the best 1% and 2% of tokens found, on held-out text\n{shown}"
