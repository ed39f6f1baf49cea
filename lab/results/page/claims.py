"""The claims of each paper: what it says, what was measured, the bound, the verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..data import SPEEDS
from ..plan import STUDIES
from .reasons import Evidence, cause
from .tables import lines_of
from .verdicts import OPEN, Verdict, judge

if TYPE_CHECKING:
    from ..data import Measured
    from ..plan import Claim, Section

PAPERS = {
    "all": "Side by side",
    "topk": "Top-k attention",
    "hashattention": "HashAttention",
    "magicpig": "MagicPIG",
    "nacl": "NaCl",
    "hashevict": "HashEvict",
}
HEADS = ("the paper says", "where", "measured", "bound", "n", "read", "verdict", "why")


def tables(evidence: Evidence) -> Iterator[str]:
    """A table for each paper, then a line with the numbers of verdicts."""
    counts: dict[str, int] = defaultdict(int)
    for paper, title in PAPERS.items():
        rows = [
            _row(evidence, section, claim, counts)
            for section in evidence.results.sections
            if section.paper == paper
            for claim in section.claims
        ]
        if rows:
            yield f"**{title}**\n"
            yield f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}"
            yield "\n".join(rows) + "\n"
    told = ", ".join(f"{n} {word}" for word, n in sorted(counts.items()))
    yield f"In all: {told}.\n"


def _row(evidence: Evidence, section: Section, claim: Claim, counts: dict[str, int]) -> str:
    of_section = evidence.measured[section.name]
    verdict = judge(section, claim, of_section)
    counts[verdict.word] += 1
    length = claim.length or section.lengths[-1]
    where = f"{section.model}, {length:,} tokens"
    at = f"[{section.name}](#{anchor(section)}), {where}"
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
    return 1 if claim.measure in ("error", "entropy", *SPEEDS) else 100


def _figure(claim: Claim, verdict: Verdict) -> str:
    assert verdict.value is not None and verdict.interval is not None
    scale = _scale(claim)
    low, high = (scale * bound for bound in verdict.interval)
    what = "" if claim.measure == "score" else f" ({claim.measure})"
    if claim.measure in SPEEDS:
        return f"**{verdict.value:,.0f}** ({low:,.0f} to {high:,.0f}) tokens/s{what}"
    return f"**{scale * verdict.value:.3g}** ({low:.3g} to {high:.3g}){what}"


def _bound(claim: Claim) -> str:
    scale = _scale(claim)
    parts = [
        f"{sign} {scale * bound:.3g}"
        for sign, bound in (("≥", claim.at_least), ("≤", claim.at_most))
        if bound is not None
    ]
    return ", ".join(parts)


def _read(section: Section, claim: Claim, measured: Measured) -> str:
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
