"""Where the pass of a prompt pauses, so that others compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ..errors import ModelError


class Pauses:
    """Those of one `Transformer`: in each layer of a prompt two, before and after its feed-forward.

    In a pause, its memory holds the prompt's half-way results. So nothing may compute in it there:
    only in other memory, such as that of a `BatchTransformer`.

    is_on: whether a pass is paused now.
    """

    def __init__(self) -> None:
        self._work: Callable[[], None] | None = None
        self.is_on = False

    @contextmanager
    def calling(self, work: Callable[[], None]) -> Iterator[None]:
        """In the block, call `work` in each pause. What it raises ends the pass."""
        before, self._work = self._work, work
        try:
            yield
        finally:
            self._work = before

    def __call__(self) -> None:
        """Pause, where there is work for it."""
        if self._work is None:
            return
        self.is_on = True
        try:
            self._work()
        finally:
            self.is_on = False

    def refuse(self) -> NoReturn:
        """Raise `ModelError` for what would compute in the memory of a paused pass."""
        raise ModelError("cannot run the model: a prompt is paused in its memory")
