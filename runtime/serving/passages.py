"""What an answer read of its prompt, as messages have it. Imports no NumPy and no kernels."""

from __future__ import annotations

import msgspec


class Passage(msgspec.Struct):
    """Neighbouring tokens, from position `start` up to `stop`, which is not among them.

    share: of all choices of tokens of the prompt, 0 to 1.
    """

    start: int
    stop: int
    share: float
    text: str


class Lens(msgspec.Struct):
    """What the tokens of an answer read.

    all: no token chose what it read, as with method `full` or few tokens; read is 1 then, and there
    are no passages. read: of the stored tokens, the share that a KV head read in the mean, sinks
    and window with them, in layers that chose. passages: where most choices fell, the largest share
    first.
    """

    all: bool
    read: float
    passages: list[Passage] = []
