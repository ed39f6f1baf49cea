"""`kvarn eval`: what a model recalls from long contexts, method by method."""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..evals.quality.oracle import Oracle
from ..evals.tasks import ALL_TASKS, RULER, Plain, Prose, Task
from ..runtime.attend import ATTENDS
from ..runtime.home import home
from ..runtime.keep import KEEPS, Keep
from ..runtime.prefill import PREFILLS
from ..system.errors import KvarnError
from ..system.files import write_file
from ..system.reading import read_text
from ..system.terminal import show
from .options.attend import ATTEND_AXIS
from .options.context import add_kv_type_option
from .options.keep import KEEP_AXIS, keep_budget
from .options.methods import Axis
from .options.model import add_device_option, add_model_options, model_from
from .options.output import check_output
from .options.prefill import PREFILL_AXIS
from .options.texts import decoded
from .options.values import positive
from .terminal.columns import columns
from .terminal.interrupt import on_ctrl_c
from .terminal.notices import notice
from .terminal.progress import terminal

if TYPE_CHECKING:
    from ..evals.quality import Arm
    from ..evals.quality.folder import Answer
    from ..evals.quality.plan import Cell
    from ..evals.tasks import Filler

EVAL_KEEPS: Axis[Keep] = replace(KEEP_AXIS, methods={**KEEPS, Oracle.name: Oracle})
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
        type=_words,
        default=["needle", "kv"],
        help="what is asked (default needle,kv; `--task ?` lists them; ruler: its 13 kinds)",
    )
    parser.add_argument(
        "--length",
        metavar="N,…",
        type=_numbers,
        default=[4096],
        help="tokens of the contexts (default 4096)",
    )
    _add_methods(parser)
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
        help="read after the context as `kvarn run --pack` reads it (default), or token by token "
        "like generated ones, or at the end of the same prompt",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="random seed of the contexts"
    )
    parser.add_argument(
        "--text",
        metavar="PATH",
        type=Path,
        nargs="+",
        default=[],
        help="texts, or folders of *.txt, to hide things in (default: made-up sentences)",
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
        help="delete each context's KV cache once all have answered; answers stay",
    )
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument(
        "--answers",
        metavar="FILE",
        type=Path,
        help="also write all scores there as JSON lines, one for each context and method",
    )
    add_model_options(parser)
    add_device_option(parser)
    add_kv_type_option(parser)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("methods", "the first one is what the others are compared to")
    group.add_argument(
        "--method",
        metavar="M,…",
        type=_words,
        default=["full"],
        help=f"{', '.join(ATTENDS)}, with options of their own as in topk:index=flat:sink=8 "
        "(default full)",
    )
    group.add_argument(
        "--budget",
        metavar="N,…",
        type=_words,
        default=["2%"],
        help="tokens read per KV head, for methods that choose: 2%% (default) or a number",
    )
    group.add_argument(
        "--probe",
        metavar="N",
        type=positive,
        help="every N steps measure the softmax mass that was read and the error of attention's "
        "output (columns covered and error)",
    )
    group.add_argument(
        "--keep",
        metavar="K,…",
        type=_words,
        default=["all"],
        help=f"which tokens stay in the KV cache: {', '.join(KEEPS)} (default all), or oracle: "
        "those that the question itself attends to; contexts that evict are read again for each "
        "question",
    )
    group.add_argument(
        "--keep-budget",
        metavar="N,…",
        type=_keep_budgets,
        default=["20%"],
        help="how many stay, if not all (default 20%%)",
    )
    group.add_argument(
        "--prefill",
        metavar="P,…",
        type=_words,
        default=["exact"],
        help=f"how contexts are read: {', '.join(PREFILLS)}, with options of their own as in "
        "sparse:k=1024 (default exact)",
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [positive(word) for word in _words(text)]


def _keep_budgets(text: str) -> list[str]:
    return [keep_budget(word) for word in _words(text)]


def run(options: argparse.Namespace) -> int:
    from ..evals.quality import Plan, evaluate, render

    if options.task == ["?"]:
        show(columns([(name, _told(task)) for name, task in ALL_TASKS.items()], "<<"))
        return 0
    filler, filler_name = _filler(options.text)
    plan = Plan(
        tasks=tuple(t for name in options.task for t in (RULER if name == "ruler" else [name])),
        lengths=tuple(options.length),
        arms=tuple(_arms(options)),
        filler=filler,
        filler_name=filler_name,
        n_contexts=options.contexts,
        n_questions=options.questions,
        seed=options.seed,
        kinds=options.kv_type or ("f16", "f16"),
        keep_packs=not options.drop_packs,
        asked=options.question,
    )
    model = model_from(
        options,
        attends=[arm.attend for arm in plan.arms],
        prefills=[arm.reading for arm in plan.arms],
    )
    check_output(options.answers)
    longest = max(plan.lengths)
    if longest > model.config.n_ctx_train:
        notice(f"{model.name} was trained on {model.config.n_ctx_train:,} tokens, not {longest:,}")
    rows, work = [], options.work or home() / "evals"
    lines: list[str] = []
    with on_ctrl_c(
        lambda: f"stopped: {work} keeps what was read and answered; run the same command to resume"
    ):
        for row in evaluate(
            model, plan, work, terminal(), lambda *about: lines.append(_line(*about))
        ):
            notice(str(row))
            rows.append(row)
    if options.answers is not None:
        write_file(options.answers, "".join(lines).encode())
    show(render(rows, "json" if options.json else "md"))
    return 0


def _line(cell: Cell, number: int, answers: Sequence[Answer]) -> str:
    """One method's answers about a context, as a line of JSON."""

    def all_of(name: str) -> list[float | None]:
        return [getattr(answer, name) for answer in answers]

    found = {
        "task": cell.task,
        "length": cell.length,
        "context": number,
        "arm": answers[0].arm,
        "scores": all_of("score"),
        **{name: all_of(name) for name in ("covered", "error", "read", "entropy")},
    }
    return json.dumps(found) + "\n"


def _told(task: Task) -> str:
    """The first paragraph of a task's docstring, on one line."""
    return " ".join((task.__doc__ or "").partition("\n\n")[0].split())


def _arms(options: argparse.Namespace) -> Iterator[Arm]:
    """Every method with each of its budgets, combined with every keep and prefill method."""
    from ..evals.quality import Arm

    prefills = [(name, PREFILL_AXIS.parsed(name, {})) for name in options.prefill]
    common = {} if options.probe is None else {"probe": options.probe}
    for prefill, reading in prefills:
        for keep, share, keeping in _keeps(options):
            for method in options.method:
                for budget in _budgets(method, options.budget):
                    given = common | ({"budget": budget} if budget else {})
                    attend = ATTEND_AXIS.parsed(method, given)
                    yield Arm(method, budget, keep, share, attend, keeping, prefill, reading)


def _budgets(method: str, budgets: list[str]) -> list[str]:
    """The budgets that a method is to be run with; [""] where it takes none or names its own."""
    takes = "budget" in ATTEND_AXIS.named(method).options()
    return budgets if takes and ":budget=" not in method else [""]


def _keeps(options: argparse.Namespace) -> Iterator[tuple[str, str, Keep]]:
    """Every keep method with every budget it takes, or the one that it names."""
    for name in options.keep:
        takes = "budget" in EVAL_KEEPS.named(name).options() and ":budget=" not in name
        for share in options.keep_budget if takes else [""]:
            given = {"budget": share} if share else {}
            yield name, share, EVAL_KEEPS.parsed(name, given)


def _filler(paths: list[Path]) -> tuple[Filler, str]:
    """The filler, and a name that tells it from others."""
    if not paths:
        return Plain(), "plain"
    files = [
        file for path in paths for file in (sorted(path.glob("*.txt")) if path.is_dir() else [path])
    ]
    if not files:
        raise KvarnError(f"no *.txt in {', '.join(map(str, paths))}")
    texts, digest = [], hashlib.blake2b(digest_size=8)
    for file in files:
        data = read_text(file)
        digest.update(data)
        texts.append(decoded(data, file))
    return Prose(texts), digest.hexdigest()
