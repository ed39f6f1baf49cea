"""The claims of each paper: what it says, what was measured, the bound, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..plan import STUDIES
from .reasons import Evidence, cause
from .tables import lines_of
from .verdicts import NOT, OPEN, Verdict, judge

if TYPE_CHECKING:
    from ..data import Measurement
    from ..plan import Claim, Section

PAPERS = {
    "all": "Side by side",
    "topk": "Top-k attention",
    "hashattention": "HashAttention",
    "magicpig": "MagicPIG",
    "nacl": "NaCl",
    "hashevict": "HashEvict",
}
TABLES = "results/TABLES.md"
"""The page of all tables, from the page of verdicts."""
HEADS = ("the paper says", "where", "measured", "bound", "n", "read", "verdict", "why")


def tables(evidence: Evidence, interpreted: bool = True) -> Iterator[str]:
    """A table for each paper: of the claims that are interpreted, or of the others."""
    for paper, title in PAPERS.items():
        rows = [
            _row(evidence, section, claim, verdict)
            for section, claim, verdict in verdicts(evidence)
            if section.paper == paper and interpreted != verdict.word.startswith(NOT)
        ]
        if rows:
            yield f"**{title}**\n"
            yield f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}"
            yield "\n".join(rows) + "\n"


def verdicts(evidence: Evidence) -> Iterator[tuple[Section, Claim, Verdict]]:
    """Every claim of the plan with its verdict."""
    for section in evidence.results.sections:
        for claim in section.claims:
            yield section, claim, judge(section, claim, evidence.measured[section.name])


def counts(evidence: Evidence) -> str:
    """How many verdicts there are of each kind, in a line."""
    numbers = Counter(verdict.word for *_, verdict in verdicts(evidence))
    told = ", ".join(f"{n} {word}" for word, n in sorted(numbers.items()))
    return f"In all: {told}.\n"


def _row(evidence: Evidence, section: Section, claim: Claim, verdict: Verdict) -> str:
    of_section = evidence.measured[section.name]
    length = claim.length or section.lengths[-1]
    where = f"{section.model}, {length:,} tokens"
    at = f"[{section.name}]({TABLES}#{anchor(section)}), {where}"
    words = [claim.says, claim.where, at, _bound(claim), "", "", f"**{verdict.word}**", ""]
    if verdict.word == OPEN:
        words[2] = f"{section.name}, {where}"
    elif verdict.value is not None and verdict.interval is not None:
        words[2] = f"{contrast_of(claim)}: {_figure(claim, verdict)}, {at}"
        words[4] = f"{verdict.n:,} / {verdict.contexts}"
        words[5] = _read(section, claim, of_section)
        words[7] = cause(evidence, section, claim)
    return f"| {' | '.join(words)} |"


def contrast_of(claim: Claim) -> str:
    """The contrast in arms: `a` − 0.95 · `b`."""
    terms = " ".join(_term(factor, arm) for arm, factor in claim.contrast.items())
    return terms.removeprefix("+ ")


def _term(factor: float, arm: str) -> str:
    sign = "−" if factor < 0 else "+"
    size = "" if abs(factor) == 1 else f"{abs(factor):g} · "
    return f"{sign} {size}`{arm}`"


def _scale(claim: Claim) -> int:
    return 1 if claim.measure in ("error", "entropy") else 100


def _figure(claim: Claim, verdict: Verdict) -> str:
    assert verdict.value is not None and verdict.interval is not None
    scale = _scale(claim)
    low, high = (scale * bound for bound in verdict.interval)
    what = "" if claim.measure == "score" else f" ({claim.measure})"
    return f"**{scale * verdict.value:.3g}** ({low:.3g} to {high:.3g}){what}"


def _bound(claim: Claim) -> str:
    scale = _scale(claim)
    parts = [
        f"{sign} {scale * bound:.3g}"
        for sign, bound in (("≥", claim.at_least), ("≤", claim.at_most))
        if bound is not None
    ]
    return ", ".join(parts)


def _read(section: Section, claim: Claim, measured: Measurement) -> str:
    """What the contrast's first arm reads, as a share of the tokens, or what it keeps."""
    first = next(iter(claim.contrast))
    if " keep " in first:
        return f"keeps {first.replace('=', ' ').split()[-1]}"
    if section.kind in STUDIES:
        cells = [cell["read"] for cell in measured.cells if cell["arm"] == first]
        known = [value for value in cells if value is not None]
        return f"{100 * sum(known) / len(known):.3g}%" if known else ""
    length = claim.length or section.lengths[-1]
    for line in lines_of(section, measured, length):
        if line.arm == first and line.read is not None:
            return f"{100 * line.read:.3g}%"
    return ""


def anchor(section: Section) -> str:
    """GitHub's anchor of a section's heading."""
    kept = "".join(c for c in section.title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")
