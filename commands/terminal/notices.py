"""What commands tell the user on stderr while they work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...system.terminal import say
from .. import REAL_MODEL

if TYPE_CHECKING:
    from ...runtime.model import Model

notice = say
"""Tell the user one thing, on stderr."""


def tell_of_base_model(model: Model) -> None:
    """Say that a model was not trained to answer, where its file says so."""
    if model.info.is_base:
        notice(
            f"{model.name} is a base model: it continues texts and may not answer; "
            f"`kvarn chat -hf {REAL_MODEL}` gets a model that was trained to"
        )


class EncoderNotice:
    """For `on_compile`: says once that encoders are being compiled: the first run takes longer."""

    said = False

    def __call__(self, kernel: str, seconds: float | None) -> None:
        if not self.said:
            self.said = True
            notice("compiling encoders (first use on this machine) …")
