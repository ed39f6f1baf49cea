"""Runs the plan, step by step: a few contexts of every section first, then section by section.

Each step is the command that stands beside its table. What was answered stays in the work folder,
so a step that was interrupted goes on where it stopped, and one with more contexts asks only about
the new ones. What a step has measured goes into the section's data file when it is complete.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvarn.system.text import one_line

from .data import Measurement, cells_of, read_measurement, write_measurement

if TYPE_CHECKING:
    from .plan import Results, Section

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Step:
    """A section with so many contexts."""

    section: Section
    contexts: int


def steps(results: Results, names: Sequence[str] = ()) -> Iterator[Step]:
    """All steps, in their order: first looks, then each section to its end, late sections after
    all others. Sections whose model is not there are left out."""
    wanted = [
        section
        for section in results.sections
        if (not names or section.name in names)
        and (ROOT / results.models[section.model].file).exists()
    ]
    for late in (False, True):
        of_kind = [section for section in wanted if section.late == late]
        yield from (Step(section, section.steps()[0]) for section in of_kind)
        yield from (Step(section, n) for section in of_kind for n in section.steps()[1:])


def is_done(results: Results, step: Step) -> bool:
    """Whether a section's data are of this step's command or one with more contexts."""
    measured = read_measurement(step.section.data)
    same = measured.command == results.command(step.section, measured.contexts)
    return same and measured.contexts >= step.contexts


@dataclass(frozen=True)
class Setting:
    """Where and how the plan is run: the folder of texts, that of what is kept, the processes that
    share the contexts, and the time (`time.time()`) at which to stop. Figures depend on none of
    them."""

    texts: Path
    work: Path
    until: float
    processes: int = 1


def run(
    results: Results, setting: Setting, say: Callable[[str], None], names: Sequence[str] = ()
) -> bool:
    """Takes one step after the other until the time is over; returns whether all are done."""
    setting.work.mkdir(parents=True, exist_ok=True)
    for step in steps(results, names):
        if is_done(results, step):
            continue
        if time.time() >= setting.until:
            return False
        say(f"{step.section.name}, {step.contexts} contexts")
        if not _take(results, step, setting):
            return False
    return True


def _take(results: Results, step: Step, setting: Setting) -> bool:
    """One step; False where the time was over before it was complete."""
    command = results.command(step.section, step.contexts)
    began = time.time()
    spent = setting.work / f"{step.section.name}.seconds"
    with tempfile.TemporaryDirectory(dir=setting.work) as folder:
        answers = Path(folder) / "answers.jsonl"
        words = [word.replace("TEXT/", f"{setting.texts}/") for word in command]
        words += ["--work", str(setting.work / "contexts"), "--answers", str(answers)]
        words += ["--processes", str(setting.processes)]
        complete = _finishes([sys.executable, *words], setting.until)
        _add_seconds(spent, time.time() - began)
        if not complete:
            return False
        cells = cells_of(answers.read_text(encoding="utf-8").splitlines())
    seconds = float(spent.read_text(encoding="utf-8"))
    write_measurement(step.section.data, Measurement(command, step.contexts, seconds, cells))
    return True


def _finishes(words: Sequence[str], until: float) -> bool:
    """Runs a command; interrupts it when the time is over. Raises where it fails."""
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        process.wait(max(1.0, until - time.time()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        if process.poll() is None:
            process.kill()
            process.wait()
        return False
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode:
        raise SystemExit(f"failed with {process.returncode}: {one_line(shlex.join(words))}")
    return True


def _add_seconds(path: Path, seconds: float) -> None:
    """Adds to the time that a section has taken in all runs."""
    before = float(path.read_text(encoding="utf-8")) if path.exists() else 0.0
    path.write_text(f"{before + seconds:.1f}\n", encoding="utf-8")
