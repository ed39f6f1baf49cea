"""The pages as a whole: all is made from what was measured, but for what real models say.

That is the beginning of lab/RESULTS.md, written by hand, and stays as it is.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvarn.system.files import write_file

from ..data import Measurement, read_measurement
from ..plan import ROOM, SPEED, STUDIES, Results, hours
from . import claims, derived
from .claims import PAPERS
from .plots import Point, Series, draw
from .reasons import Evidence, failing
from .summary import cost, family, summary
from .tables import layer_table, lines_of, render, speed_table
from .verdicts import ALIKE, CEILING, FLOOR, LEAST, full_arm, gated, is_weak

if TYPE_CHECKING:
    from ..plan import Section

PAGE, TABLES, PLOTS = ROOM.parent / "RESULTS.md", ROOM / "TABLES.md", ROOM / "plots"
SMALL = """## On our small models

From here on written by `make results` from [results/plan.json](results/plan.json) and
[results/data](results/data). Scores are points of 100, and brackets hold 95% intervals that are
robust to contexts ([eval.md](../docs/guides/eval.md#intervals)). One seed of planes, encoders and
draws was measured, so no interval contains their variance.

### Which budget suffices

The least budget of each method at which the whole interval of its score less full attention's is
within a point, over all tasks of a section; "none up to" tells the largest that was measured. These
tasks ask for facts that are written in the text, and few tokens answer them: they say nothing of
what predictions of prose lose with the same budgets.
"""
VERDICTS = """### Verdicts

A claim is a bound on a paired contrast of scores, or on a measured quantity. *Reproduced*: its
whole 95% interval is within the bound. *Refuted*: none of it is. Else it *cannot be told*. Bounds
that no paper states are marked as ours. **n** is questions / contexts, those of all tasks together;
**read** is what the first arm reads: the share of the stored tokens that a decoded token reads in
the layers that choose, sinks and window included. The links lead to tables and commands; [why
claims fail](results/TABLES.md#why-claims-fail) explains the last column.
"""
NOT_TOLD = f"""### What is not interpreted

- Tasks of which full attention answers less than {100 * LEAST:.0f}%, in studies of attention, too.
- Contrasts on the floor: all arms answer less than {100 * FLOOR:.0f}%.
- Contrasts on the ceiling: all arms answer more than {100 * CEILING:.0f}% and lie within
  {100 * ALIKE:.0f} point. That few tokens answer such tasks is said above; that one method is as
  good as another, or as full attention, does not follow.
- Speed that papers measured on other machines with other programs.

Such claims [stand beside the tables](results/TABLES.md#claims-that-are-not-interpreted).
"""
ALL = """# The tables behind RESULTS.md

Written by `make results` from [plan.json](plan.json) and [data](data); do not edit. What follows
from them, and what real models say, is in [RESULTS.md](../RESULTS.md).

- [Why claims fail](#why-claims-fail)
- [Claims that are not interpreted](#claims-that-are-not-interpreted)
- the tables, each with its command: [side by side](#side-by-side),
  [top-k attention](#top-k-attention), [HashAttention](#hashattention), [MagicPIG](#magicpig),
  [NaCl](#nacl), [HashEvict](#hashevict)
"""
WHY = """For each claim that is refuted or cannot be told: whether method, budget or tasks are why.
An arm *falls short* where the whole interval of its score less full attention's is more than a
point below 0. *Softmax covered* and *output error* are those of
[methods.md](../../docs/guides/methods.md), over the steps that were probed; of methods that evict,
those at the tokens of the true reply, layer by layer.
"""
OPEN = """### What is not measured

Other seeds of planes, encoders and draws; answers whose first token the method chooses, too
(`--question decoded`), where all above begin after full attention has read the question; facts on
real models of these sizes, which recall few.
"""
NONE = "None does.\n"


def report(results: Results) -> dict[Path, str]:
    """The pages and the plots: path → content."""
    measured = gated(results, {one.name: read_measurement(one.data) for one in results.sections})
    evidence, files = Evidence(results, measured), dict[Path, str]()
    by_hand, _, _ = PAGE.read_text(encoding="utf-8").partition(SMALL.splitlines()[0])
    parts = [by_hand + SMALL, summary(results, measured) + "\n"]
    parts += [VERDICTS, *claims.tables(evidence), claims.counts(evidence)]
    parts.append(NOT_TOLD)
    parts += [OPEN, _open(results, measured)]
    files[PAGE] = _joined(parts)
    parts = [ALL, "## Why claims fail\n", WHY, *(list(failing(evidence)) or [NONE])]
    unclear = "".join(f"{part}\n" for part in claims.tables(evidence, interpreted=False))
    parts += ["## Claims that are not interpreted\n", unclear.replace(claims.TABLES, "")]
    parts += ["Full attention answers too little in these cells:\n", _weak(results, measured)]
    for paper, title in PAPERS.items():
        sections = [section for section in results.sections if section.paper == paper]
        if any(measured[section.name].cells for section in sections):
            parts.append(f"## {title}\n")
        for section in sections:
            if measured[section.name].cells:
                parts += _section(results, section, measured[section.name], files)
    files[TABLES] = _joined(parts)
    return files


def _joined(parts: list[str]) -> str:
    return "\n".join(parts).rstrip("\n") + "\n"


def write_report(results: Results) -> None:
    """Write the pages and the plots."""
    PLOTS.mkdir(exist_ok=True)
    for path, content in report(results).items():
        write_file(path, content.encode())


def _section(
    results: Results, section: Section, measured: Measurement, files: dict[Path, str]
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


def _plots(section: Section, measured: Measurement, files: dict[Path, str]) -> Iterator[str]:
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
    return f"![{name}](plots/{name}.svg)\n"


def _weak(results: Results, measured: dict[str, Measurement]) -> str:
    lines = []
    for section in results.sections:
        of_section = measured[section.name]
        for length in of_section.lengths():
            if section.kind in STUDIES:
                continue
            weak = [t for t in of_section.tasks(length) if is_weak(of_section, t, length)]
            if weak:
                lines.append(f"- {section.name} at {length:,}: {', '.join(weak)}")
    return ("\n".join(lines) if lines else "None.") + "\n"


def _open(results: Results, measured: dict[str, Measurement]) -> str:
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
    return "\n".join(lines) if lines else "Of the plan, nothing is left.\n"
