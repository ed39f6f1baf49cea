"""Facts of a pack: its model, how its prompts were read, what sparse reading left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

_SHARED = ("frame", "centre")
"""Columns that belong to the indexes of keys' directions."""
_METHODS = {
    "sketch": "topk",
    "simhash": "hash",
    "learned": "hash with a learned encoder",
    "tables": "magicpig",
    "means": "--tail means",
}
"""By how the names of their columns begin."""


@dataclass(frozen=True)
class PrefillFacts:
    """How prompts were read, if not exactly. K and V depend on it as on the tokens.

    from_: tokens of a context that are read exactly. tail: whether what is not chosen counts by
    means of blocks. column: the name of the column that is chosen by, with the digest of what
    computes it. rerank: how many candidates by signatures for each token that is chosen. size: of
    mode "blocks", whose other facts are those of its rest (index "": read exactly), the tokens of a
    block. until: how many tokens belong to blocks that are read apart; 0: the commit tells it.
    windows: "stop" where those of layers stop at the borders of blocks.
    """

    mode: str
    index: str
    k: int
    from_: int
    tail: bool
    column: str
    rerank: int = 1
    size: int = 0
    until: int = 0
    windows: str = ""

    def __str__(self) -> str:
        rerank = f" of {self.rerank * self.k:,}" if self.rerank > 1 else ""
        tail = ", tail" if self.tail else ""
        chosen = f"index {self.column}, k {self.k}{rerank}, from {self.from_}{tail}"
        if not self.size:
            return f"{self.mode} ({chosen})"
        name, _, rest = self.mode.partition(" ")
        until = f"up to token {self.until:,}" if self.until else ""
        sparse = f"then sparse: {chosen}" if self.index else ""
        windows = self.windows and f"windows {self.windows}"
        details = ", ".join(filter(None, (rest, windows, until, sparse)))
        return f"{name}:{self.size}" + (f" ({details})" if details else "")


@dataclass(frozen=True)
class ProbeFacts:
    """What sparse reading of prompts left out in one layer: means over the tokens measured.

    covered_mass: share of the softmax that was read; output_error: ‖o - o_full‖ / ‖o_full‖.
    """

    layer: int
    n_tokens: int
    covered_mass: float
    output_error: float

    def __str__(self) -> str:
        return (
            f"layer {self.layer}: {self.covered_mass:.2%} of the softmax covered, output error "
            f"{self.output_error:.3f} ({self.n_tokens:,} tokens measured)"
        )


@dataclass(frozen=True)
class ProbeSums:
    """What `ProbeFacts` are the means of: sums over the tokens measured, in one layer."""

    n_tokens: int = 0
    covered_mass: float = 0.0
    output_error: float = 0.0

    def __add__(self, other: ProbeSums) -> ProbeSums:
        return ProbeSums(
            self.n_tokens + other.n_tokens,
            self.covered_mass + other.covered_mass,
            self.output_error + other.output_error,
        )

    def means(self, layer: int) -> ProbeFacts:
        """Means over the tokens measured, at least one."""
        n = self.n_tokens
        return ProbeFacts(layer, n, self.covered_mass / n, self.output_error / n)


def progress(n_tokens: int, goal: int, n_blocks_read: int = 0, n_blocks: int = 0) -> str:
    """How far a text is read, in words. goal: tokens, 0 for any number. n_blocks: 0 where it is not
    read block by block."""
    words = f"{n_tokens:,}" + (f" of {goal:,}" if n_tokens < goal else "")
    return words + (f", {n_blocks_read:,} of {n_blocks:,} blocks read" if n_blocks else "")


@dataclass(frozen=True)
class PackHead:
    """The facts of a pack that take no time to read, however long it is: its model, and its
    progress as of the last commit."""

    path: str
    model: str
    fingerprint: str
    model_path: str
    n_tokens: int
    goal: int
    """Tokens it is to hold when complete; 0 for any number."""
    adapters: list[str]
    """The adapters of its model, FILE:SCALE."""
    n_blocks: int = field(default=0, kw_only=True)
    """Those of a pack that several processes read block by block, until they are joined."""
    n_blocks_read: int = field(default=0, kw_only=True)

    @property
    def progress(self) -> str:
        """How many of its tokens, and of its blocks, are read."""
        return progress(self.n_tokens, self.goal, self.n_blocks_read, self.n_blocks)

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
    """The same of its parent; "" without one, or where that cannot be read."""
    n_bytes: int
    """Disk space of its own files."""
    states: list[int] = field(default_factory=list)
    """After how many tokens it has checkpoints of what layers carry besides K and V."""
    state_bytes: int = 0
    """Of each."""

    @property
    def reading(self) -> str:
        """How its prompts were read, for the end of a line; "" if exactly."""
        return "" if self.prefill == "exact" else f" (prefill: {self.prefill})"

    @property
    def index_of(self) -> list[str]:
        """The methods that its indexes are of; a column's name for one that no method has."""
        names = [name for name in self.indexes if name not in _SHARED]
        return list(dict.fromkeys(_METHODS.get(name.partition("-")[0], name) for name in names))

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {**asdict(self), "complete": self.complete}
