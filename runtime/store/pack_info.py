"""What is told of a context pack."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .prompt_facts import ProbeFacts


@dataclass(frozen=True)
class PackHead:
    """What can be told of a pack at once, however long it is: its model, and how far it has come
    as of its last commit."""

    path: str
    model: str
    fingerprint: str
    model_path: str
    n_tokens: int
    goal: int
    """Tokens it is to hold when complete; 0 for any number."""

    @property
    def complete(self) -> bool:
        return self.n_tokens >= self.goal


@dataclass(frozen=True)
class PackInfo(PackHead):
    """What a pack holds, as of its last commit."""

    id: str
    kv: str
    commits: int
    indexes: list[str]
    prefill: str
    """How its prompts were read: "exact", or what `PrefillFacts` says."""
    probe: list[ProbeFacts]
    """What was measured beside sparse reading, layer by layer: see `--prefill-probe`."""
    parent: str
    parent_prefill: str
    """How its parent's were; "" without one, or where that cannot be read."""
    n_bytes: int
    """Disk space of its own files."""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "complete": self.complete}
