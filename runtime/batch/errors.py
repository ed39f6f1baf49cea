"""What can go wrong for some contexts of a pass."""

from __future__ import annotations

from ...system.errors import KvarnError


class NotSaved(KvarnError):
    """All contexts have read their tokens; those with these numbers could not save themselves."""

    def __init__(self, problems: dict[int, KvarnError]) -> None:
        self.problems = problems
        first = next(iter(problems.values()))
        super().__init__(f"{len(problems)} contexts could not be saved, the first one: {first}")
