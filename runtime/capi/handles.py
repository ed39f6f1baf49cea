"""What is open: models and contexts, by the numbers that programs have of them (`handles.c`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ...system.errors import KvarnError
from .arguments import Arguments
from .errors import Refused

if TYPE_CHECKING:
    from ..chat import Conversation
    from ..context import Context
    from ..model import Model

T = TypeVar("T")

MODEL, CONTEXT = 1, 2
"""Kinds of handles: those of handles.c."""


@dataclass
class Opened:
    """A context and what belongs to its handle."""

    context: Context
    model: int
    conversation: Conversation | None = None
    base: int = 0
    """Tokens that were read by other calls than `chat`, which stay."""


@dataclass
class Handles(Arguments):
    """Models and contexts by their handles."""

    models: dict[int, Model] = field(default_factory=dict)
    contexts: dict[int, Opened] = field(default_factory=dict)

    def model_of(self, handle: int) -> Model:
        """A model; `Refused` where the handle is none of an open one."""
        return self._of(self.models, handle, MODEL)

    def opened(self, handle: int) -> Opened:
        """A context; `Refused` likewise."""
        return self._of(self.contexts, handle, CONTEXT)

    def _of(self, held: dict[int, T], handle: int, kind: int) -> T:
        if (found := held.get(handle)) is None:
            raise Refused(self.lib.bad_handle(handle, kind))
        return found

    def new_handle(self, kind: int) -> int:
        """A handle that no other one has or had."""
        made = int(self.lib.handle_new(kind))
        if not made:
            raise KvarnError("4,096 models and contexts are open: free some")
        return made

    def kept(self, held: dict[int, T], kind: int, value: T) -> int:
        """The new handle of what is open from here on."""
        made = self.new_handle(kind)
        self.lib.stop_of(made)[0] = self.lib.is_ending()
        held[made] = value
        return made
