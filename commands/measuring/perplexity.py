"""`kvarn perplexity`: how well a model predicts a text, and what methods lose of it."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ...runtime.attend import Full
from ...runtime.axes import ATTEND_AXIS, KEEP_AXIS
from ...runtime.context.planning.plan import training_notice
from ...runtime.keep import KeepAll
from ...runtime.methods import called
from ...runtime.perplexity import perplexity
from ...runtime.prefill import Exact
from ...system.errors import KvarnError, WrongUsage
from ...system.terminal import say, show
from ..opening import Workload, load_model
from ..options.arms import budgets_of, keeps_from, words
from ..options.context import add_kv_type_option, add_prefill_options, request_from
from ..options.files import add_files_option, add_piece_options, documents_from
from ..options.model import ModelRequest
from ..options.model_options import add_model_options
from ..options.values import positive
from ..terminal.progress import terminal
from ..terminal.tables import columns

if TYPE_CHECKING:
    from ...evals.prediction import MethodLosses
    from ...runtime.context.planning.request import ContextRequest
    from ...runtime.keep import Keep
    from ...runtime.prefill import Prefill

PROBE = 16


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Cut the text into pieces of --ctx tokens, and read each in an empty context. The "
        "perplexity is exp of the mean of −log p over the second halves of the pieces. With "
        "--decode, read --ctx tokens of each text once, predict the next ones one by one with "
        "several methods, and tell what each loses against full attention."
    )
    add_files_option(parser, "the text; with --decode one or several")
    add_piece_options(parser)
    group = parser.add_argument_group("methods, with --decode")
    group.add_argument(
        "--decode", metavar="T", type=positive, help="predict T tokens after the first --ctx"
    )
    group.add_argument(
        "--method",
        metavar="M,…",
        dest="methods",
        type=words,
        help=f"{', '.join(ATTEND_AXIS.methods)}, with options of their own as in "
        "topk:budget=2%%:tail=means (default topk:budget=2%%, none with --keep)",
    )
    group.add_argument(
        "--keep",
        metavar="K,…",
        dest="keeps",
        type=words,
        help=f"{', '.join(name for name in KEEP_AXIS.methods if name != KeepAll.name)}, with "
        "options of their own: read the texts while they evict, and compare them, too",
    )
    group.add_argument(
        "--keep-budget",
        metavar="N,…",
        dest="keep_budgets",
        type=budgets_of,
        help="how many tokens stay: shares of --ctx or numbers (default 20%%)",
    )
    group.add_argument(
        "--probe",
        metavar="N",
        dest="probe_every",
        type=positive,
        help="every N tokens measure the softmax mass that was read and the error of attention's "
        f"output (default {PROBE})",
    )
    group.add_argument(
        "--work",
        metavar="DIR",
        type=Path,
        help="keep the packs of the texts there, for further methods (default: they are removed)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    add_model_options(parser, with_device=True)
    add_kv_type_option(parser)
    add_prefill_options(parser)


def run(options: argparse.Namespace) -> int:
    _check(options)
    source, request = ModelRequest.of(options), request_from(options)
    if options.decode is not None:
        return _compare(options, source, request)
    store, prefill = request.store, request.prefill or Exact()
    documents = documents_from(options)
    if len(documents) > 1:
        raise KvarnError(
            f"perplexity is of one text, found {len(documents)}: give them one by one, or "
            "compare methods on all of them with --decode T"
        )
    (document,) = documents
    model = load_model(source, Workload(store.types(), prefills=[prefill]))
    result = None
    results = perplexity(model, document.text, options.ctx, options.chunks, store, prefill)
    if line := training_notice(model, "--ctx", options.ctx):
        say(line)
    for result in results:
        say(f"[{result.n_chunks}/{result.all_chunks}] {result.value:.4f}")
    if result is None:
        raise KvarnError(f"{document.path}: too short for a piece of {options.ctx} tokens")
    if options.json:
        show(
            json.dumps(
                {
                    "perplexity": result.value,
                    "error": result.error,
                    "n_tokens": result.n_tokens,
                    "n_chunks": result.n_chunks,
                    "n_ctx": options.ctx,
                    "prefill": called(prefill),
                    "model": str(model.path),
                }
            )
        )
    else:
        show(f"perplexity {result.value:.4f} ± {result.error:.4f} ({result.n_tokens} tokens)")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raise `KvarnError` for options that have no effect together."""
    if options.decode is not None:
        if options.chunks is not None:
            raise WrongUsage("--chunks has no effect with --decode: it predicts after one piece")
        if options.keep_budgets is not None and options.keeps is None:
            raise WrongUsage("--keep-budget has no effect without --keep")
        return
    flags = {
        "--method": options.methods,
        "--keep": options.keeps,
        "--keep-budget": options.keep_budgets,
        "--probe": options.probe_every,
        "--work": options.work,
    }
    for name, value in flags.items():
        if value is not None:
            raise WrongUsage(f"{name} has no effect without --decode T")


def _compare(options: argparse.Namespace, source: ModelRequest, request: ContextRequest) -> int:
    """What methods lose against full attention, over all texts."""
    from ...evals.prediction import compare_methods, passages_of, with_references

    probe = options.probe_every or PROBE
    keeps = _keeps(options, request.prefill)
    named = options.methods or ([] if keeps else ["topk:budget=2%"])
    attends = {word: ATTEND_AXIS.parsed(word, {"probe": probe}) for word in named}
    methods, kinds = with_references(attends, probe), request.store.types()
    texts = {str(document.path): document.text for document in documents_from(options)}
    prefill = request.prefill
    prefills = [] if prefill is None else [prefill]
    model = load_model(source, Workload(kinds, list(methods.values()), prefills=prefills))
    passages = passages_of(model, texts, options.ctx, options.decode)
    if line := training_notice(model, "--ctx", options.ctx):
        say(line)
    with ExitStack() as stack:
        folder = options.work or Path(stack.enter_context(TemporaryDirectory(prefix="kvarn-")))
        results = compare_methods(
            model, passages, methods, folder, kinds, prefill, terminal(), keeps
        )
    if options.json:
        facts = {
            "model": str(model.path),
            "n_ctx": options.ctx,
            "n_predicted": options.decode,
            "prefill": called(prefill or Exact()),
            "kv_type": "/".join(kinds),
            "files": list(texts),
        }
        show(json.dumps(facts | {"methods": [result.as_dict() for result in results]}))
    else:
        show(table(results))
    return 0


def _keeps(options: argparse.Namespace, prefill: Prefill | None) -> dict[str, Keep]:
    """The methods that evict, by their names. Raises `KvarnError` for one that keeps all."""
    keeps = {}
    for name, share, keep in keeps_from(options.keeps or [], options.keep_budgets or ["20%"]):
        named = f"keep {name} {share}".rstrip()
        if not keep.evicts(options.ctx):
            raise WrongUsage(
                f"--{named} evicts none of {options.ctx:,} tokens: use a smaller --keep-budget"
            )
        if prefill is not None:
            prefill.check(Full(), keep, options.ctx)
        keeps[named] = keep
    return keeps


def table(results: list[MethodLosses]) -> str:
    """A row for each method: nats a token against full attention, with their 95% interval."""
    head = ["method", "read", "nats", "95%", "KL", "same best", "covered", "error"]
    rows = [head]
    for result in results:
        interval = result.interval()
        rows.append(
            [
                result.method,
                _share(result.read),
                f"{result.nats:+.4f}",
                "" if interval is None else f"{interval[0]:+.4f} to {interval[1]:+.4f}",
                f"{result.kl:.4f}",
                _share(result.agreement),
                _share(result.covered),
                "" if result.error is None else f"{result.error:.3f}",
            ]
        )
    return columns(rows, "<>>>>>>>")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
