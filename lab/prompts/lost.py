"""What ways of reading a prompt lose: the tokens after it, predicted with all of it attended to.

    python -m lab.prompts.lost -m MODEL -f TEXT… [--ctx 30000] [--predict 2000]
        [--prefill exact,blocks:4096] [--work DIR] [--json FILE]

Reads the first --ctx tokens of each text in each way, into a pack in --work, which a later run
opens again. The next tokens then read all of them, exactly, so differences come from K and V of
the prompt alone. Prints, for each way beside the first, nats a token with a 95% interval, KL and
the share of the tokens whose best prediction is the same, as `kvarn perplexity --decode` does.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kvarn.evals.prediction import MethodLosses, Passage, passages_of
from kvarn.evals.prediction.losses import TextLosses, log_softmax
from kvarn.ops.arrays import F32
from kvarn.runtime.axes import PREFILL_AXIS
from kvarn.runtime.loading.load import load
from kvarn.runtime.packs.pack import build_pack
from kvarn.runtime.store import Disk
from kvarn.system.errors import KvarnError
from kvarn.system.files import check_target, write_file
from kvarn.system.reading import MOST_TEXT, read_text
from kvarn.system.terminal import say, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvarn.runtime.model import Model
    from kvarn.runtime.prefill import Prefill


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        ways = {name: PREFILL_AXIS.parsed(name, {}) for name in options.prefill.split(",")}
        if options.json is not None:
            check_target(options.json)
        model = load(options.model, threads=options.threads)
        texts = {str(file): read_text(file, MOST_TEXT).decode() for file in options.files}
        passages = passages_of(model, texts, options.ctx, options.predict)
        with ExitStack() as stack:
            work = options.work or Path(stack.enter_context(TemporaryDirectory(prefix="lost-")))
            losses = compare(model, passages, ways, work)
        if options.json is not None:
            rows = [one.as_dict() for one in losses]
            write_file(options.json, (json.dumps(rows, indent=2) + "\n").encode())
        show(table(losses))
    except (KvarnError, OSError) as error:
        say(f"lost: {error}")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.prompts.lost",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-m", "--model", type=Path, help="default: the default model")
    parser.add_argument("-f", "--files", type=Path, nargs="+", required=True, help="UTF-8 texts")
    parser.add_argument("--ctx", type=int, default=30_000)
    parser.add_argument("--predict", type=int, default=2_000)
    parser.add_argument("--prefill", default="exact,blocks:4096")
    parser.add_argument("--work", type=Path, help="where packs are kept (default: they are not)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the rows to FILE, too")
    parser.add_argument("-t", "--threads", type=int)
    return parser


def compare(
    model: Model, passages: Sequence[Passage], ways: Mapping[str, Prefill], work: Path
) -> list[MethodLosses]:
    """What each way loses against the first one."""
    losses = [MethodLosses(name) for name in ways]
    for passage in passages:
        texts = [TextLosses() for _ in ways]
        with ExitStack() as stack:
            predicted = []
            for way in ways.values():
                facts = repr((passage.read, way, model.info.fingerprint))
                pack = work / blake2b(facts.encode(), digest_size=12).hexdigest()
                build_pack(model, pack, passage.read, len(passage.read), way)
                n_ctx = len(passage.read) + len(passage.following)
                context = stack.enter_context(
                    model.context(n_ctx, store=Disk(pack, read_only=True))
                )
                predicted.append(_rows(context.read_all_logits(passage.following[:-1])))
            for following, *rows in zip(passage.following[1:], *predicted, strict=True):
                logs = [log_softmax(row) for row in rows]
                for text, log in zip(texts, logs, strict=True):
                    text.add(logs[0], log, following)
        for one, text in zip(losses, texts, strict=True):
            one.texts.append(text)
            say(f"{passage.name}, {one.method}: {sum(text.nats) / len(text.nats):+.4f} nats")
    return losses


def _rows(
    chunks: Iterator[F32],
) -> Iterator[F32]:
    for rows in chunks:
        yield from rows


def table(losses: Sequence[MethodLosses]) -> str:
    """A row for each way of reading but the first."""
    lines = [
        f"| beside {losses[0].method} | nats | 95% | KL | same best |",
        "|---|---:|---:|---:|---:|",
    ]
    for one in losses[1:]:
        interval = one.interval()
        span = "" if interval is None else f"{interval[0]:+.4f} to {interval[1]:+.4f}"
        lines.append(
            f"| {one.method} | {one.nats:+.4f} | {span} | {one.kl:.4f} | {one.agreement:.1%} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
