"""Why a claim is refuted or cannot be told: by what the best choice of as many tokens does.

A claim names that arm (`Claim.exact`): exact top-k, or `oracle` where tokens are evicted. An arm
falls short where the whole 95% interval of its score less full attention's is below SLACK.

It is asked of each task:

budget: the best choice of as many tokens falls short itself: this model needs more tokens.
prompt: `oracle` does: no query of the prompt looks for what the answer needs.
method: it does not, and an arm of the claim does: what the method chooses is why.
tasks: none falls short: these tasks do not tell the arms apart on this model.

In a study by layers it is asked of each layer:

sharp: the best choice covers nearly all of the softmax.
proposal: it does not, so the variance of what is drawn instead is why.

The code is not among the causes: CHECKED names the tests that compare it with the papers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..plan import LAYERS, LOST
from .tables import lines_of
from .verdicts import EARLY, REFUTED, UNTOLD, Verdict, full_arm, is_full, judge

if TYPE_CHECKING:
    from ..data import Measurement
    from ..plan import Claim, Results, Section

SLACK = -0.01
NEARLY_ALL = 0.90
"""Of the softmax, covered by the best choice: attention is sharp."""
CHECKED = {
    "topk": "`tests/ops/select/test_exact.py`, `tests/lab/methods/test_covered.py`",
    "hashattention": "`tests/ops/select/test_hamming.py`, `tests/ops/select/test_encode.py`",
    "magicpig": "`tests/runtime/attend/test_magicpig.py`, `tests/ops/select/test_tables.py`",
    "nacl": "`tests/runtime/test_scored.py`, `tests/runtime/test_nacl.py`",
    "hashevict": "`tests/ops/evict/test_evict.py`, `tests/runtime/test_keep.py`",
    "all": "the tests that the sections of each paper name",
}
"""Tests that compare what a method keeps or chooses with its paper's formula in NumPy."""
TELLS = {
    "budget": "the best choice of as many tokens falls short of full attention, too: this model "
    "needs more of them",
    "prompt": "even `oracle`, which keeps what the question's own queries attend to most, falls "
    "short of full attention: the answer looks for tokens that no query of the prompt looks for",
    "method": "the best choice of as many tokens does not fall short of full attention: what the "
    "method chooses does",
    "tasks": "none of the arms falls short of full attention: these tasks do not tell them apart "
    "on this model",
    "sharp": f"few tokens hold over {100 * NEARLY_ALL:.0f}% of the softmax: attention is sharp in "
    "this model, and a sample of what is left out has little to add",
    "proposal": "the softmax is spread over many tokens; draws by its true weights (`oracle, m "
    "draws`) do better there than the best choice of as many, those by hashes do not: what they "
    "are drawn by does not follow the weights, and the estimate varies",
    "angles": "how many keys are drawn follows from the angles between this model's keys and "
    "queries, which the sections on the error of each layer tell",
    "early": "the best choice of as many tokens is not measured to the end",
    "": "no exact choice decides it, so the figures below have to speak",
}


@dataclass(frozen=True)
class Evidence:
    """The plan, and what was measured of its sections, by their names."""

    results: Results
    measured: Mapping[str, Measurement]

    def section(self, name: str) -> Section:
        return next(section for section in self.results.sections if section.name == name)

    def beside_full(self, name: str, claim: Claim, arm: str) -> Verdict:
        """An arm's score less full attention's in a section, in the claim's tasks."""
        measured = self.measured[name]
        plain = replace(claim, contrast={arm: 1.0, full_arm(measured): -1.0}, measure="score")
        return judge(self.section(name), plain, measured)

    def falls_short(self, name: str, claim: Claim, arm: str) -> bool | None:
        """Whether that is below SLACK; None: not measured to the end."""
        verdict = self.beside_full(name, claim, arm)
        if verdict.interval is None or verdict.word == EARLY:
            return None
        return verdict.interval[1] < SLACK


def causes(evidence: Evidence, section: Section, claim: Claim) -> dict[str, list[str]]:
    """Why a claim fails: keys of TELLS, and the tasks or layers in which each is why, in order; {}
    where it does not fail, or nothing tells."""
    verdict = judge(section, claim, evidence.measured[section.name])
    if verdict.word not in (REFUTED, UNTOLD):
        return {}
    if claim.measure == "read":
        return {"angles": list(verdict.tasks)}
    if not claim.exact:
        return {}
    found: dict[str, list[str]] = {}
    if section.kind == LAYERS:
        best = [c for c in evidence.measured[section.name].cells if c["arm"] == claim.exact]
        for layer in sorted({cell["layer"] for cell in best}):
            covered = _mean([cell["covered"] for cell in best if cell["layer"] == layer])
            if covered is not None:
                word = "sharp" if covered >= NEARLY_ALL else "proposal"
                found.setdefault(word, []).append(f"layer {layer}")
    elif claim.measure == "score":
        for task in verdict.tasks:
            word = _cause(evidence, section, replace(claim, tasks=(task,)))
            found.setdefault(word, []).append(task)
    return found


def _cause(evidence: Evidence, section: Section, claim: Claim) -> str:
    """The cause in a claim's only task."""
    name, exact = claim.exact_in(section.name)
    best = evidence.falls_short(name, claim, exact)
    if best is None:
        return "early"
    if best:
        return "prompt" if " keep oracle" in exact else "budget"
    others = [arm for arm in claim.contrast if arm != exact and not is_full(arm)]
    short = [evidence.falls_short(section.name, claim, arm) for arm in others]
    return "method" if any(short) else "tasks"


def cause(evidence: Evidence, section: Section, claim: Claim) -> str:
    """The causes in words: "method", or "method (needle, kv), prompt (two-hop)"."""
    found = causes(evidence, section, claim)
    if len(found) == 1:
        return next(iter(found))
    return ", ".join(f"{word} ({', '.join(tasks)})" for word, tasks in found.items())


def failing(evidence: Evidence) -> Iterator[str]:
    """For each section with claims that fail: the claims, then the figures that tell why."""
    for section in evidence.results.sections:
        of_section = evidence.measured[section.name]
        failed = [
            (claim, verdict.word)
            for claim in section.claims
            if (verdict := judge(section, claim, of_section)).word in (REFUTED, UNTOLD)
        ]
        if not failed:
            continue
        yield f"### {section.title}: why\n"
        lines: list[str] = []
        told: dict[str, list[str]] = {}
        for claim, word in failed:
            why = cause(evidence, section, claim)
            told.update(causes(evidence, section, claim) or {"": []})
            where = claim.where if claim.where.startswith("(") else f"({claim.where})"
            lines.append(f"- *{claim.says}* {where}: {word}. **{why or 'open'}**")
        yield "\n".join(lines) + "\n"
        yield " ".join(f"**{word or 'open'}**: {TELLS[word]}." for word in told) + "\n"
        yield _figures(evidence, section, [claim for claim, _ in failed]) + "\n"
        yield f"The code is compared with the formulas by {CHECKED[section.paper]}.\n"


def _figures(evidence: Evidence, section: Section, claims: list[Claim]) -> str:
    """A table of the claims' arms: score beside full attention, mass covered, output error."""
    length = claims[0].length or section.lengths[-1]
    whole = replace(claims[0], tasks=section.tasks, length=length)
    rows = []
    for name, arm in dict.fromkeys(pair for claim in claims for pair in _arms(section, claim)):
        one, measured = evidence.section(name), evidence.measured[name]
        read = covered = error = score = ""
        if section.kind in (LAYERS, LOST):
            read, covered, error = _by_layer(measured, arm)
        else:
            score = _beside(evidence.beside_full(name, whole, arm))
            for line in lines_of(one, measured, length):
                if line.arm == arm:
                    read = "" if line.read is None else f"{100 * line.read:.3g}%"
                    covered = "" if line.covered is None else f"{100 * line.covered:.1f}%"
                    error = "" if line.error is None else f"{line.error:.3f}"
        if not covered and section.asked == "inside":
            covered, error = _lost(evidence, arm)
        rows.append([f"`{arm}`", score, read, covered, error])
    head = ["arm", "less full attention, 95%", "read", "softmax covered", "output error"]
    kept = [i for i in range(len(head)) if i == 0 or any(row[i] for row in rows)]
    table = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row[i] for i in kept)} |" for row in table)


def _beside(verdict: Verdict) -> str:
    """A difference from full attention in points, with its interval."""
    if verdict.value is None or verdict.interval is None:
        return ""
    low, high = verdict.interval
    early = ", not measured to the end" if verdict.word == EARLY else ""
    return f"{100 * verdict.value:+.1f} ({100 * low:.1f} to {100 * high:.1f}){early}"


def _arms(section: Section, claim: Claim) -> list[tuple[str, str]]:
    """The arms of a claim but full attention, the exact one last, each after its section."""
    found = [(section.name, arm) for arm in claim.contrast if not is_full(arm)]
    exact = claim.exact_in(section.name)
    return [*found, exact] if claim.exact and exact not in found else found


def _lost(evidence: Evidence, arm: str) -> tuple[str, str]:
    """covered and error of an arm that evicts, where a study of what is lost has it."""
    plain = arm.replace(":budget=", " ")
    for section in evidence.results.sections:
        if section.kind == LOST:
            _, covered, error = _by_layer(evidence.measured[section.name], plain)
            if covered:
                return covered, error
    return "", ""


def _by_layer(measured: Measurement, arm: str) -> tuple[str, str, str]:
    """read, covered and error of a study, layer by layer."""
    cells = [cell for cell in measured.cells if cell["arm"] == arm]
    layers = sorted({cell["layer"] for cell in cells})
    found = []
    for name, scale, digits in (("read", 100, 1), ("covered", 100, 1), ("error", 1, 3)):
        parts = []
        for layer in layers:
            value = _mean([cell[name] for cell in cells if cell["layer"] == layer])
            if value is not None:
                unit = "%" if scale == 100 else ""
                parts.append(f"{scale * value:.{digits}f}{unit} (layer {layer})")
        found.append(", ".join(parts))
    return found[0], found[1], found[2]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
