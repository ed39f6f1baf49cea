"""`make results`: runs the plan and writes lab/RESULTS.md.

python -m lab.results plan                    what is to be measured, and for how long
python -m lab.results run TEXTS [--minutes N] measure, then write the page
python -m lab.results report                  only write the page
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

from kvarn.jit.machine import physical_cores
from kvarn.system.errors import KvarnError, message_of
from kvarn.system.terminal import say, say_lines, show

from .data import read_measurement
from .page.report import write_report
from .plan import PLAN, Results, hours, read_plan
from .run import ROOT, Setting, run


def main() -> int:
    """Entry point of the module."""
    p = argparse.ArgumentParser(
        prog="python -m lab.results",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    p.add_argument("--plan", type=Path, default=PLAN)
    commands = p.add_subparsers(dest="command", required=True)
    commands.add_parser("plan")
    commands.add_parser("report")
    runner = commands.add_parser("run")
    runner.add_argument("texts", type=Path, help="folder with the books that the plan names")
    runner.add_argument("--work", type=Path, default=ROOT / "build" / "results")
    runner.add_argument("--minutes", type=float, default=math.inf, help="stop after so long")
    runner.add_argument("--only", metavar="NAME,…", default="", help="only these sections")
    runner.add_argument(
        "--processes", type=int, default=physical_cores(), help="that share the contexts"
    )
    try:
        return _run(p, p.parse_args())
    except (KvarnError, OSError) as error:
        say(message_of(error))
        return 1


def _run(p: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    results = read_plan(options.plan)
    if options.command == "plan":
        show(estimate(results))
        return 0
    complete = True
    if options.command == "run":
        missing = [name for name in results.texts if not (options.texts / name).is_file()]
        if missing:
            p.error(f"{options.texts} has no {', '.join(missing)}, which the plan hides facts in")
        names = [name for name in options.only.split(",") if name]
        unknown = set(names) - {section.name for section in results.sections}
        if unknown:
            p.error(f"the plan has no section {', '.join(sorted(unknown))}: see `plan` for all")
        say_lines(estimate(results))
        until = time.time() + 60 * options.minutes
        texts, work = options.texts.resolve(), options.work.resolve()
        complete = run(results, Setting(texts, work, until, options.processes), say, names)
    write_report(results)
    if not complete:
        say("stopped: the same command goes on")
    return 0


def estimate(results: Results) -> str:
    """A line for each section: contexts, questions, hours, and how far it has got."""
    lines = []
    for section in results.sections:
        asked = section.contexts * section.questions * len(section.tasks) * len(section.lengths)
        done = read_measurement(section.data).contexts
        lines.append(
            f"{section.name:24} {section.model:6} {len(section.arms):3} methods, up to {asked:6,} "
            f"questions each: {hours(results.seconds(section)):>7}; {done} of {section.contexts} "
            "contexts done"
        )
    total = sum(map(results.seconds, results.sections))
    return "\n".join([*lines, f"in all: {hours(total)} of two cores"])


if __name__ == "__main__":
    sys.exit(main())
