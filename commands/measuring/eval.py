"""`kvarn eval`: what a model recalls from long contexts, method by method."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...evals.tasks import ALL_TASKS, RULER, Plain, Prose, Task
from ...jit.machine import physical_cores
from ...runtime.documents import read_document
from ...runtime.home import home
from ...runtime.store import Ram
from ...system.children import run_helpers
from ...system.errors import KvarnError
from ...system.files import write_file
from ...system.terminal import say, set_listener, show
from ..opening import Workload, load_model
from ..options.arms import add_arm_options, arms_from, words
from ..options.context import add_kv_type_option
from ..options.files import check_output
from ..options.model import ModelRequest
from ..options.model_options import add_model_options
from ..options.values import positive, seed
from ..terminal.interrupt import on_ctrl_c
from ..terminal.progress import terminal
from ..terminal.tables import columns

if TYPE_CHECKING:
    from ...evals.quality import Plan
    from ...evals.quality.folder import Answer
    from ...evals.quality.plan import Cell
    from ...evals.tasks import Filler
    from ...runtime.model import Model

_CONTEXTS = 20
_QUESTIONS = 100


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Read long contexts once and ask the same questions about them with every "
        "method. Lists are separated by commas. If interrupted, run the same command to resume; "
        "contexts that were read are kept for other methods."
    )
    parser.add_argument(
        "--task",
        metavar="NAME,…",
        type=words,
        default=["needle", "kv"],
        help="what to ask (default needle,kv; `--task ?` lists the tasks; ruler: its 13 tasks)",
    )
    parser.add_argument(
        "--length",
        metavar="N,…",
        type=_numbers,
        default=[4096],
        help="tokens of the contexts (default 4096)",
    )
    add_arm_options(parser)
    parser.add_argument(
        "--contexts",
        metavar="N",
        type=positive,
        default=_CONTEXTS,
        help="contexts of each task and length (default %(default)s)",
    )
    parser.add_argument(
        "--questions",
        metavar="N",
        type=positive,
        default=_QUESTIONS,
        help="most questions about each (default %(default)s; some tasks have only one)",
    )
    parser.add_argument(
        "--question",
        choices=("apart", "decoded", "inside"),
        default="apart",
        help="how the question is read: after the context, as `kvarn run --pack` reads it (apart, "
        "the default); token by token, like generated ones (decoded); or at the end of the same "
        "prompt (inside)",
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="ask an instruct model through its chat template: context and question are one "
        "message, each task has an introduction, and the answer ends with the model's turn",
    )
    parser.add_argument(
        "--seed", metavar="N", type=seed, default=0, help="random seed of the contexts"
    )
    parser.add_argument(
        "--text",
        metavar="PATH",
        type=Path,
        nargs="+",
        default=[],
        help="texts, documents (PDF, Word, EPUB, HTML) or folders of *.txt, to hide things in "
        "(default: made-up sentences)",
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        type=Path,
        help="where contexts and answers are kept (default: evals in KVARN_HOME)",
    )
    parser.add_argument(
        "--drop-packs",
        action="store_true",
        help="delete each context's KV cache once every method has answered; answers stay",
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        type=positive,
        default=1,
        help="processes that share the contexts, each with an equal part of the threads (default "
        "1); models of a few million parameters gain most",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument(
        "--answers",
        metavar="FILE",
        type=Path,
        help="also write all scores to FILE as JSON lines, one for each context and method",
    )
    add_model_options(parser, with_device=True)
    add_kv_type_option(parser)


def _numbers(text: str) -> list[int]:
    return [positive(word) for word in words(text)]


def run(options: argparse.Namespace) -> int:
    from ...evals.quality import evaluate, render

    if options.task == ["?"]:
        show(columns([(name, _summary(task)) for name, task in ALL_TASKS.items()], "<<"))
        return 0
    plan, work = _plan(options), _work(options)
    model = _model(options, plan)
    check_output(options.answers)
    rows, observer = [], terminal(each_line_once=True)
    lines: list[str] = []
    with (
        on_ctrl_c(
            lambda: (
                f"stopped: {work} keeps what was read and answered; run the same command to resume"
            )
        ),
        run_helpers(options.processes - 1, _help, options, observer.say),
    ):
        for row in evaluate(
            model, plan, work, observer, lambda *scored: lines.append(_line(*scored)),
            shared=options.processes > 1,
        ):  # fmt: skip
            say(str(row))
            rows.append(row)
    if options.answers is not None:
        write_file(options.answers, "".join(lines).encode())
    show(render(rows, "json" if options.json else "md"))
    return 0


def _plan(options: argparse.Namespace) -> Plan:
    from ...evals.quality import Plan

    filler, filler_name = _filler(options.text)
    return Plan(
        tasks=tuple(t for name in options.task for t in (RULER if name == "ruler" else [name])),
        lengths=tuple(options.length),
        arms=tuple(arms_from(options)),
        filler=filler,
        filler_name=filler_name,
        n_contexts=options.contexts,
        n_questions=options.questions,
        seed=options.seed,
        kinds=Ram(*(options.kv_type or ())).types(),
        keep_packs=not options.drop_packs,
        asked=options.question,
        chat=options.chat,
    )


def _model(options: argparse.Namespace, plan: Plan) -> Model:
    source = ModelRequest.of(options)
    if options.processes > 1 and source.threads is None:
        source = replace(source, threads=max(1, physical_cores() // options.processes))
    attends, prefills = [arm.attend for arm in plan.arms], [arm.reading for arm in plan.arms]
    return load_model(source, Workload(plan.kinds, attends, prefills=prefills))


def _work(options: argparse.Namespace) -> Path:
    work: Path = options.work or home() / "evals"
    if work.exists() and not work.is_dir():
        raise KvarnError(f"--work {work} is a file: expected a folder, or a name for a new one")
    return work


def _help(options: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Evaluate a part of the contexts, in another process.

    The parent shows the same notices and errors itself."""
    from ...evals.quality import answer_free

    set_listener(lambda line: None)
    plan = _plan(options)
    answer_free(_model(options, plan), plan, _work(options), say)


def _line(cell: Cell, number: int, answers: Sequence[Answer]) -> str:
    """One method's answers about a context, as a line of JSON."""

    def all_of(name: str) -> list[float | None]:
        return [getattr(answer, name) for answer in answers]

    fields = {
        "task": cell.task,
        "length": cell.length,
        "context": number,
        "arm": answers[0].arm,
        "scores": all_of("score"),
        **{name: all_of(name) for name in ("covered", "error", "read", "entropy")},
    }
    return json.dumps(fields) + "\n"


def _summary(task: Task) -> str:
    """The first paragraph of a task's docstring, on one line."""
    return " ".join((task.__doc__ or "").partition("\n\n")[0].split())


def _filler(paths: list[Path]) -> tuple[Filler, str]:
    """The filler, and a name that tells it from others."""
    if not paths:
        return Plain(), "plain"
    files = [
        file for path in paths for file in (sorted(path.glob("*.txt")) if path.is_dir() else [path])
    ]
    if not files:
        named = ", ".join(map(str, paths))
        raise KvarnError(f"--text {named}: found no *.txt, expected texts, documents or folders")
    texts, digest = [], hashlib.blake2b(digest_size=8)
    for file in files:
        texts.append(read_document(file, notice=say))
        digest.update(texts[-1].encode())
    return Prose(texts), digest.hexdigest()
