"""What stands behind the handle of a context."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ..draft.base import WORDS
from ..draft.request import DraftRequest
from ..loading.load import load
from .options import generation_of

if TYPE_CHECKING:
    from ..chat.conversation import Conversation
    from ..context import Context
    from ..draft import Draft


@dataclass
class OpenContext:
    """A context and what belongs to its handle.

    base: tokens that other calls than `chat` read: they stay. drafts: by the words that asked for
    them; a model that guesses stays loaded as long as the context.
    """

    context: Context
    model: int
    conversation: Conversation | None = None
    base: int = 0
    drafts: dict[str, Draft] = field(default_factory=dict)

    def generation(self, given: Mapping[str, Any], log: Callable[[str], None]) -> dict[str, Any]:
        """Arguments of `Context.generation`, of options of `GENERATE`. log: hears of notices."""
        model = self.context.model
        words = {name: given[name] for name in WORDS if name in given}
        key = json.dumps(words, sort_keys=True)
        if key not in self.drafts and (asked := DraftRequest.of(words)) is not None:
            asked.check(model.path)
            self.drafts[key] = asked.open(partial(load, notice=log))
        return {**generation_of(given, model), "draft": self.drafts.get(key)}
