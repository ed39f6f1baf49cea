"""How a request is refused: in one sentence, with the kind of the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...system.errors import KvarnError, WrongUsage, message_of
from ...system.terminal import say
from ..sampling.errors import NotFinite, SamplingError
from .protocol import Kind, Refused

if TYPE_CHECKING:
    from .frames import BadMessage


class Refusal(KvarnError):
    """A request that cannot be done. kind: see `protocol.Refused`."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


def prompt_too_long(n_tokens: int, most: int) -> Refusal:
    """The refusal of a prompt that does not fit."""
    return Refusal(
        "too long",
        f"the prompt has {n_tokens:,} tokens, and the context has room for {most:,}: expected a "
        "shorter prompt",
    )


def refusal_of(id: int, error: Exception, kind: Kind = "engine") -> Refused:
    """The message for an error. kind: that of a `KvarnError` whose class implies none."""
    if isinstance(error, Refusal):
        kind = error.kind
    elif isinstance(error, WrongUsage | SamplingError) and not isinstance(error, NotFinite):
        kind = "invalid"  # such as a grammar that became too complex on the way
    elif not isinstance(error, KvarnError):
        kind = "engine"
    return Refused(id, kind, " ".join(message_of(error).split()))


def reject(send: Callable[[Refused], None], error: BadMessage) -> None:
    """Tell the sender of a message that cannot be read, or the log where it has no number."""
    if error.id < 0:
        say(str(error))
    else:
        send(Refused(error.id, "invalid", str(error)))
