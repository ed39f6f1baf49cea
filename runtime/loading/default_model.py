"""Which model is used if none is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...system.errors import KvarnError
from ..home import last_model

LISTED = "`kvarn ls` lists the models on this machine"
"""What to do where a model's file is not there."""


def default_model_path() -> Path:
    """The small model that ships with kvarn."""
    path = Path(__file__).resolve().with_name("kvarn-mini.gguf")
    if not path.is_file():
        raise KvarnError(
            f"the default model is missing from this installation ({path}): "
            "give a model with -m FILE, or install kvarn again"
        )
    return path


def usual_model_path(notice: Callable[[str], None]) -> Path:
    """The model that commands use without -m: the GGUF file that `kvarn convert` wrote or `kvarn
    hf-pull` downloaded last, or else the default model. `notice` is called with its name."""
    last = last_model()
    if last is not None and last.is_file():
        notice(f"no -m FILE given: using the last converted or pulled model {last}")
        return last
    default = default_model_path()
    gone = f" ({last}, the last converted or pulled one, is gone: if it was moved, give -m FILE)"
    notice(f"no -m FILE given: using the default model {default.name}{gone if last else ''}")
    return default
