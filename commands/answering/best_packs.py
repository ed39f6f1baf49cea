"""Of many packs, those that a question fits best: for `kvarn ask --packs` and `--best`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...system.errors import KvarnError
from ...system.terminal import say
from ..terminal.progress import progress_bar

if TYPE_CHECKING:
    from ...runtime.context.planning.request import ContextRequest
    from ...runtime.lens.weights import Open
    from ...runtime.model import Model
    from ...runtime.store.facts import PackHead

_NAMED = 3
"""Packs beside those that answer which a line names."""


def require_one_model(
    heads: Mapping[str, tuple[ContextRequest, PackHead | None]],
) -> tuple[ContextRequest, PackHead]:
    """The first pack of them. Raises `KvarnError` if another model made one of the others."""
    (first, (request, head)), *others = heads.items()
    assert head is not None  # a pack that is read has one
    for name, (_, other) in others:
        assert other is not None
        if (other.fingerprint, other.adapters) != (head.fingerprint, head.adapters):
            raise KvarnError(
                f"{first} was made by {_maker(head)} and {name} by {_maker(other)}: a question is "
                "compared after packs of one model"
            )
    return request, head


def _maker(head: PackHead) -> str:
    adapters = f" with {', '.join(head.adapters)}" if head.adapters else ""
    return f"{head.model} (fingerprint {head.fingerprint}){adapters}"


def compare_packs(
    model: Model, asked: Mapping[str, ContextRequest], question: str, best: int, open: Open
) -> dict[str, float]:
    """The names of the packs that the question fits best, the best first, with their gains. A line
    tells of those and the next ones."""
    from ...runtime.packs.ranking import rank_packs

    names = {str(request.store.path): name for name, request in asked.items()}  # type: ignore[attr-defined]
    with progress_bar("comparing packs", "pack") as progress:
        fits = rank_packs(model, list(asked.values()), question, open, progress)
    tell_fits(len(asked), [(Path(fit.pack).name, fit.gain) for fit in fits], best)
    return {names[fit.pack]: fit.gain for fit in fits[:best]}


def tell_fits(n_packs: int, fits: Sequence[tuple[str, float]], best: int) -> None:
    """A line about the first packs, the best first, and the next ones."""
    gains = ", ".join(f"{name} {gain:+.2f}" for name, gain in fits[: best + _NAMED])
    say(f"of {n_packs} packs, the question fits best (ln p a token): {gains}")
