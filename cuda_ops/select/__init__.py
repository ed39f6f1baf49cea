"""Choosing tokens on a GPU: the lists that `ops.select` makes, by signatures and by sketches."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

from ...ops import select
from .hash import SignatureScratch, nearest
from .sketch import Frames, Rotation, SketchScratch, best_sketched, key_moments, sketch_keys


def operations(device: torch.device, old: bool) -> SimpleNamespace:
    """What attend methods use of `ops.select` on a GPU, by the same names; old: see `is_old`."""
    return SimpleNamespace(
        Lists=select.Lists,
        SignedKeys=select.SignedKeys,
        SketchedKeys=select.SketchedKeys,
        Wanted=select.Wanted,
        Frame=Frames(device),
        Rotation=SimpleNamespace(random=partial(Rotation.random, device=device)),
        SignatureScratch=partial(SignatureScratch, device=device, old=old),
        SketchScratch=partial(SketchScratch, device=device),
        best_sketched=best_sketched,
        key_moments=key_moments,
        nearest=nearest,
        sketch_keys=sketch_keys,
    )
