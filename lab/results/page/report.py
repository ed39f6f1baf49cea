"""The page as a whole, from what was measured: no figure in it is written by hand."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvarn.runtime.attend import Auto
from kvarn.system.files import write_file

from ..data import Measured, read_measured
from ..plan import ROOM, SPEED, STUDIES, Results, hours
from . import claims, derived
from .claims import PAPERS
from .plots import Point, Series, draw
from .reasons import Evidence, failing
from .summary import cost, family, summary
from .tables import layer_table, lines_of, render, speed_table
from .verdicts import LEAST, full_arm, is_weak

if TYPE_CHECKING:
    from ..plan import Section

PAGE = ROOM.parent / "RESULTS.md"
PLOTS = ROOM / "plots"
HEAD = """# What the papers claim, measured

Written by `make results` from [results/plan.json](results/plan.json) and
[results/data](results/data); do not edit. The models are small (3 to 9 million parameters): what is
refuted here is refuted for them, at these lengths. Scores are points of 100, and brackets hold 95%
intervals that are robust to contexts ([docs/eval.md](../docs/eval.md#intervals)).

- [Which method, which budget](#which-method-which-budget)
- [Verdicts](#verdicts), a claim each
- [Why claims fail](#why-claims-fail)
- the tables, each with its command: [side by side](#side-by-side),
  [top-k attention](#top-k-attention), [HashAttention](#hashattention), [MagicPIG](#magicpig),
  [NaCl](#nacl), [HashEvict](#hashevict)
- [Not interpreted](#not-interpreted), [not measured yet](#not-measured-yet)
"""
SUMMARY = f"""## Which method, which budget

The least budget of each method at which the whole interval of its score less full attention's is
within a point, over all tasks of a section; "none up to" tells the largest that was measured. Only
sections that are measured to the end are here. `--method auto` reads every token up to
{Auto.full_up_to:,} tokens in the context, and beyond that what `topk` chose with
a shared budget of 2%, the default of that time.
"""
VERDICTS = f"""## Verdicts

A claim is a bound on a paired contrast of scores, or on a measured quantity. *Reproduced*: its
whole 95% interval is within the bound. *Refuted*: none of it is. Else it *cannot be told*. A
section that is not measured to the end has figures and no verdict. Tasks in which full attention
answers less than {100 * LEAST:.0f}% are not interpreted. Claims and bounds that no paper states
are marked as ours. **n** is questions / contexts, those of all tasks together; **read** is what the
first arm reads: the share of the stored tokens that a decoded token reads in the layers that
choose, sinks and window included. The links lead to tables and commands.
"""
WHY = """For each claim that is refuted or cannot be told: whether method, budget or tasks are why.
An arm *falls short* where the whole interval of its score less full attention's is more than a
point below 0. *Softmax covered* and *output error* are those of
[docs/methods.md](../docs/methods.md), over the steps that were probed; of methods that evict, those
at the tokens of the true reply, layer by layer.
"""
NONE = "None does.\n"


def report(results: Results) -> dict[Path, str]:
    """The page and the plots: path → content."""
    measured = {section.name: read_measured(section.data) for section in results.sections}
    files: dict[Path, str] = {}
    parts = [HEAD, SUMMARY, summary(results, measured) + "\n"]
    parts += [VERDICTS, *claims.tables(Evidence(results, measured))]
    parts += ["## Why claims fail\n", WHY, *(list(failing(Evidence(results, measured))) or [NONE])]
    for paper, title in PAPERS.items():
        sections = [section for section in results.sections if section.paper == paper]
        if any(measured[section.name].cells for section in sections):
            parts.append(f"## {title}\n")
        for section in sections:
            if measured[section.name].cells:
                parts += _section(results, section, measured[section.name], files)
    parts += ["## Not interpreted\n", _weak(results, measured)]
    parts += ["## Not measured yet\n", _open(results, measured)]
    files[PAGE] = "\n".join(parts).rstrip("\n") + "\n"
    return files


def write_report(results: Results) -> None:
    """Write the page and the plots."""
    PLOTS.mkdir(exist_ok=True)
    for path, content in report(results).items():
        write_file(path, content.encode())


def _section(
    results: Results, section: Section, measured: Measured, files: dict[Path, str]
) -> Iterator[str]:
    yield f"### {section.title}\n"
    yield f"{section.about}\n"
    yield _command(measured.command)
    if measured.contexts < section.contexts:
        yield f"So far {measured.contexts} of {section.contexts} contexts of each task.\n"
    for length in measured.lengths():
        if section.kind in STUDIES:
            yield f"At {length:,} tokens, {section.model}, seed {section.seed}:\n"
            table = speed_table if section.kind == SPEED else layer_table
            yield table(section, measured, length) + "\n"
            continue
        how = f"{section.model}, seed {section.seed}, questions {section.asked}"
        yield f"At {length:,} tokens, {how}:\n"
        yield render(section, measured, length) + "\n"
        if "k" in section.axis.split("+"):
            yield derived.render(section, measured, length) + "\n"
    yield from _plots(section, measured, files)


def _command(words: object) -> str:
    text = shlex.join(words)  # type: ignore[arg-type]
    return "    python " + text + "\n"


def _plots(section: Section, measured: Measured, files: dict[Path, str]) -> Iterator[str]:
    """Quality against what was read or kept, at each length; against length, for all."""
    axes = section.axis.split("+") if section.axis else []
    for length in measured.lengths() if axes else ():
        lines = {line.arm: line for line in lines_of(section, measured, length)}
        for axis in {"read", "kept"} & set(axes):
            found = defaultdict(list)
            for arm in section.arms[1:]:
                line = lines.get(str(arm))
                if line is not None and line.score is not None and (axis == "kept" or line.read):
                    point = Point(cost(arm, line), line.score, line.interval)
                    found[family(arm)].append(point)
            full = lines.get(full_arm(measured))
            level = full.score if full else None
            series = [Series(name, points) for name, points in found.items()]
            title = f"{section.title}: {length:,} tokens"
            if series:
                picture = draw(title, f"tokens {axis}", series, level)
                yield _keep(files, f"{section.name}-{length}", picture)
    if "length" in axes:
        by_arm = defaultdict(list)
        for length in measured.lengths():
            for line in lines_of(section, measured, length):
                if line.score is not None:
                    by_arm[line.arm].append(Point(length, line.score, line.interval))
        if by_arm:
            series = [Series(name, points) for name, points in by_arm.items()]
            yield _keep(files, f"{section.name}-length", draw(section.title, "tokens", series))


def _keep(files: dict[Path, str], name: str, picture: str) -> str:
    files[PLOTS / f"{name}.svg"] = picture
    return f"![{name}](results/plots/{name}.svg)\n"


def _weak(results: Results, measured: dict[str, Measured]) -> str:
    lines = []
    for section in results.sections:
        of_section = measured[section.name]
        for length in of_section.lengths():
            if section.kind in STUDIES:
                continue
            weak = [t for t in of_section.tasks(length) if is_weak(of_section, t, length)]
            if weak:
                lines.append(f"- {section.name} at {length:,}: {', '.join(weak)}")
    told = "Full attention answers too little in these cells:\n\n" + "\n".join(lines)
    return (told if lines else "Nothing.") + "\n"


def _open(results: Results, measured: dict[str, Measured]) -> str:
    lines = []
    for section in results.sections:
        done = measured[section.name].contexts
        if done >= section.contexts:
            continue
        about = f"{done} of {section.contexts} contexts" if done else "nothing"
        lines.append(
            f"- **{section.name}** ({section.title}; {section.model}): {about} measured; about "
            f"{hours(results.seconds(section))} in all.\n\n{_command(results.command(section))}"
        )
    return "\n".join(lines) if lines else "Nothing is left.\n"
