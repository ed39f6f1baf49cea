"""The draft that options ask for."""

from __future__ import annotations

import argparse
from functools import partial

from ...runtime.draft.request import DraftRequest
from ...system.spelling import as_flag
from .model import model_file


def draft_from(options: argparse.Namespace) -> DraftRequest | None:
    """The draft that parsed options ask for. Raises what `DraftRequest.of` raises."""
    return DraftRequest.of(vars(options), as_flag, partial(model_file, remember=False))
