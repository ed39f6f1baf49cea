"""Which model is taken where none is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...system.errors import KvarnError
from ..home import last_model


def default_model_path() -> Path:
    """The small model that ships with kvarn."""
    path = Path(__file__).resolve().parents[2] / "mini" / "kvarn-mini.gguf"
    if not path.is_file():
        raise KvarnError(
            f"the default model is missing from this installation ({path}): "
            "give a model with -m FILE, or install kvarn again"
        )
    return path


def usual_model_path(notice: Callable[[str], None]) -> Path:
    """The model that commands take without -m, which is said: the last one, or the default one.

    That is the GGUF file that `kvarn convert` wrote, or `kvarn hf-pull` found ready, last.
    """
    last = last_model()
    if last is not None and last.is_file():
        notice(f"no -m FILE given: using the last converted or pulled model {last}")
        return last
    default = default_model_path()
    gone = "" if last is None else f" ({last}, the last converted or pulled one, is gone)"
    notice(f"no -m FILE given: using the default model {default.name}{gone}")
    return default
