"""`kvarn ask`: a question to packs, answered with the passages that weighed most."""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runtime.context.planning.request import ContextRequest
from ...runtime.home import pack_path, saved_path
from ...runtime.lens.passages import MOST_PASSAGES, PASSAGES
from ...runtime.loading.adapter_files import adapter_files
from ...runtime.packs import MAX_TOKENS
from ...runtime.packs.notes import finished_packs
from ...runtime.store.disk.format.manifest import NAME
from ...system.errors import KvarnError, WrongUsage
from ...system.spelling import as_flag
from ...system.terminal import generate, say, show, show_json
from ...system.values import count
from ..notices import tell_of_template
from ..opening import Workload, compile_for, load_model, open_context
from ..options.cluster import add_ray_options, check_ray_options
from ..options.context import add_attend_options
from ..options.generation import (
    add_max_tokens_option,
    add_sampling_options,
    add_system_option,
    sampling_from,
)
from ..options.model import ModelRequest
from ..options.model_options import add_ctx_option, add_file_flag, add_threads_option
from ..options.values import argument_type, file_name, positive, utf8
from ..terminal.interrupt import Interruptible, ReadingStopped
from ..terminal.progress import index_context
from .best_packs import compare_packs, require_one_model
from .endings import tell_end

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from ...runtime.context import Context
    from ...runtime.lens.weights import Open
    from ...runtime.model import Model
    from ...runtime.packs.asking import Answer, Asker
    from ...runtime.store.facts import PackHead
    from ..parsing.parser import Parser

_OF_TEMPLATE = 1024
"""Tokens that a chat template writes around a question, at most; where it writes more, kernels are
compiled later."""


def add(parser: Parser) -> None:
    parser.description = (
        "Ask packs a question. The answer goes to stdout, and below it the passages of the pack "
        "that weighed most in it, each with its place, and its share of what this question attends "
        "to beyond a neutral one. Several packs answer one after the other, each from "
        "its own text; of many, --best N asks those that the question fits best: after which it is "
        "likelier than without them. The default is --temp 0."
    )
    parser.gathers = True
    parser.epilog = "Make a pack first: kvarn pack build -f report.pdf -o report"
    parser.add_argument(
        "packs",
        metavar="PACK",
        type=file_name,
        nargs="*",
        help="a name among your packs (in KVARN_HOME), or a path with a /; of a folder of packs, "
        "each",
    )
    parser.add_argument(
        "--packs",
        metavar="FOLDER",
        dest="folders",
        type=Path,
        action="append",
        default=[],
        help="ask those packs in a folder that the question fits best",
    )
    parser.add_argument(
        "--best",
        metavar="N",
        type=positive,
        help="how many of all packs that are named answer (default: each; with --packs 1)",
    )
    add_ray_options(parser, "ask the packs of --packs where they are,")
    parser.add_argument("question", metavar="QUESTION", type=utf8, help="the question, in quotes")
    add_max_tokens_option(
        parser, MAX_TOKENS, f"at most N tokens in an answer (default {MAX_TOKENS}; -1: no limit)"
    )
    parser.add_argument(
        "--passages",
        metavar="N",
        type=argument_type(count, 0, MOST_PASSAGES),
        default=PASSAGES,
        help=f"how many passages to name, at most {MOST_PASSAGES} (default {PASSAGES}; 0: none)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_system_option(parser, "a system message before the question")
    model = parser.add_argument_group("model")
    add_file_flag(model, "the packs' model, if it was moved")
    add_threads_option(model)
    add_ctx_option(model, "room for N tokens")
    add_attend_options(parser)
    add_sampling_options(parser, temp=0.0)
    parser.set_defaults(hf=None)


def run(options: argparse.Namespace) -> int:
    source, sampling = ModelRequest.of(options), sampling_from(options)
    if not options.question.strip():
        raise WrongUsage("the question is empty: kvarn ask PACK … QUESTION")
    check_ray_options(options)
    if options.ray is not None:
        from .ask_cluster import ask_on_ray

        return ask_on_ray(options, sampling)
    names = [each for name in options.packs for each in _packs_of(name)]
    names += [name for folder in options.folders for name in _packs_in(folder)]
    if not names:
        raise WrongUsage("no packs: kvarn ask PACK … QUESTION, or --packs FOLDER QUESTION")
    requests = {name: _request(options, name) for name in names}
    heads = {name: (request, request.store.head()) for name, request in requests.items()}
    answers: list[dict[str, Any]] = []
    model, loaded = None, None
    gains: dict[str, float] = {}
    best = options.best or (1 if options.folders else len(requests))
    if best < len(requests):
        one = require_one_model(heads)
        model, loaded = _load(source, *one), (one[1].fingerprint, one[1].adapters)
        gains = compare_packs(
            model, requests, options.question, best, _compared(options, source, model)
        )
        heads = {name: heads[name] for name in gains}
    for name, (request, head) in heads.items():
        assert head is not None  # a pack that is read has one
        is_new = model is None or (head.fingerprint, head.adapters) != loaded
        if model is None or is_new:
            model, loaded = _load(source, request, head), (head.fingerprint, head.adapters)
        asker = _asker(options, source, model, sampling)
        if len(requests) > 1 and not options.json:
            show(f"{name}:")
        tell = partial(tell_of_template, model) if is_new or not answers else lambda: None
        answer = _answer(asker, request, options, tell)
        gain = {"gain": gains[name]} if gains else {}
        answers.append({"pack": head.path, "model": head.model, **gain, **asdict(answer)})
        if not options.json and len(answers) < len(heads):
            show("")
    if options.json:
        show_json({"question": options.question, "answers": answers})
    return 0


def _packs_of(name: str) -> list[str]:
    """The pack of that name, or those in the folder."""
    path = pack_path(name)
    return _packs_in(path) if path.is_dir() and not (path / NAME).is_file() else [name]


def _packs_in(folder: Path) -> list[str]:
    """The finished packs in a folder, by name."""
    packs = finished_packs(folder, say)
    return [os.path.join(folder, pack.name) for pack in packs]  # noqa: PTH118 - "./a", a path


def _request(options: argparse.Namespace, name: str) -> ContextRequest:
    """The context after a pack. Raises `KvarnError` for the name of a file."""
    path = pack_path(name)
    if not path.exists() and Path(name).is_file():
        path = Path(name)
    if path.is_file():
        raise KvarnError(
            f"{name} is a file, not a pack: `kvarn pack build -f {name} -o {path.stem}` reads it "
            f"once, then ask {path.stem}"
        )
    if not path.exists() and saved_path(name) == path:  # a session: the request refuses it
        raise KvarnError(
            f"pack {name}: no such folder; `kvarn pack ls` lists the packs; a question of several "
            "words needs quotes"
        )
    return ContextRequest.of({**vars(options), "pack": name}, as_flag)


def _load(source: ModelRequest, request: ContextRequest, head: PackHead) -> Model:
    if source.is_named:  # -m tells where the model is now, not what was added to it
        source = replace(source, lora=adapter_files(head.adapters))
    return load_model(source, Workload.of(request), head, compiles=False)


def _n_prompt(options: argparse.Namespace) -> int:
    """The most tokens of the question with its template: no token is of no byte."""
    text = f"{options.system or ''}{options.question}"
    return len(text.encode("utf-8", "surrogatepass")) + _OF_TEMPLATE


def _compared(options: argparse.Namespace, source: ModelRequest, model: Model) -> Open:
    """Opens packs to compare them, with the kernels for that compiled."""

    @contextmanager
    def open(request: ContextRequest) -> Iterator[Context]:
        with model.open(request) as context:
            compile_for(source, model, context, _n_prompt(options))
            yield context

    return open


def _asker(
    options: argparse.Namespace, source: ModelRequest, model: Model, sampling: dict[str, Any]
) -> Asker:
    from ...runtime.packs.asking import Asker

    n_opened = 0

    @contextmanager
    def indexed(request: ContextRequest) -> Iterator[Context]:
        with open_context(source, model, request, _n_prompt(options)) as context:
            index_context(context)
            yield context

    def open(request: ContextRequest) -> AbstractContextManager[Context]:
        nonlocal n_opened  # what a context has to tell is told once
        n_opened += 1
        return indexed(request) if n_opened == 1 else model.open(request)

    return Asker(
        open,
        model.sampler(**sampling),
        options.max_tokens,
        options.stop,
        options.system,
        options.passages,
    )


def _answer(
    asker: Asker, request: ContextRequest, options: argparse.Namespace, tell: Callable[[], None]
) -> Answer:
    """Writes an answer as it comes, and its passages, unless JSON is asked for. tell: called before
    that, unless the question is refused."""
    with Interruptible() as interrupt:
        pieces = asker.pieces(request, options.question, interrupt.progress)
        try:
            answer = _written(pieces, interrupt, options.json, tell)
        except ReadingStopped:
            raise KeyboardInterrupt from None
    if options.json:
        return answer
    tell_end(answer, options.passages)
    return answer


def _written(
    pieces: Generator[str, None, Answer],
    interrupt: Interruptible,
    quiet: bool,
    tell: Callable[[], None],
) -> Answer:
    """The answer, whose pieces are written as they come; Ctrl-C ends the program after a piece."""
    n_pieces = 0
    while True:
        try:
            piece = next(pieces)
        except StopIteration as end:
            answer: Answer = end.value
            if not n_pieces:
                tell()
            if not quiet:
                generate("\n")
            return answer
        interrupt.clear_bar()
        if interrupt.asked:
            raise KeyboardInterrupt
        if not n_pieces:
            tell()
        n_pieces += 1
        if not quiet:
            generate(piece)
