"""What an answer read of its prompt, as messages have it. Imports no NumPy and no kernels."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Passage:
    """Neighbouring tokens, from position `start` up to `stop`, which is not among them.

    share: of all choices of tokens of the prompt, 0 to 1.
    """

    start: int
    stop: int
    share: float
    text: str


@dataclass(frozen=True)
class Lens:
    """What the tokens of an answer read.

    all: no token chose what it read, as with method `full` or few tokens; read is 1 then, and there
    are no passages. read: of the stored tokens, the share that a KV head read in the mean, sinks
    and window with them, in layers that chose. passages: where most choices fell, the largest share
    first.
    """

    all: bool
    read: float
    passages: list[Passage] = field(default_factory=list)
