"""Softmax masses: sums of exp(score), score = softcap tanh(s / softcap) or s, s = scale q . k."""

import numpy as np

from ...jit.cached import jit
from ...jit.simd import hmax, hsum, load_f32, set_f32, store, vexp, vmax
from ..attention.lanes import mask
from ..attention.layout import TILE
from ..pointwise.tanh import vtanh

_NONE = -1e30  # the score of what does not count: its exponential is 0


@jit
def scores_of(products, scoring):
    """The scores of 16 products; scoring: `Scoring`."""
    x = products * set_f32(scoring.scale)
    if scoring.softcap != 0.0:
        x = vtanh(x * set_f32(1.0 / scoring.softcap)) * set_f32(scoring.softcap)
    return x


@jit
def exponential(x):
    """exp of one number up to 0."""
    return hmax(vexp(set_f32(x)))


@jit
def add_mass(line, lo, hi, scoring, total):
    """Add the products lo .. hi-1 at an address to total float32[2]: the greatest score, and the
    sum of exp(score - greatest)."""
    first, top = lo // TILE * TILE, set_f32(total[0])
    for i in range(first, hi, TILE):
        x = scores_of(load_f32(line, 4 * i), scoring)
        top = vmax(top, mask(x, lo - i, hi - i, _NONE))
    most = hmax(top)
    own = set_f32(0.0)
    for i in range(first, hi, TILE):
        x = scores_of(load_f32(line, 4 * i), scoring)
        own = own + mask(vexp(x - set_f32(most)), lo - i, hi - i, 0.0)
    total[1] = total[1] * exponential(total[0] - most) + hsum(own)
    total[0] = most


@jit
def weigh(line, n, top, out):
    """out[i] = exp(score i - top) of n scores at an address, rounded up to whole vectors."""
    for i in range(0, n, TILE):
        store(out, 4 * i, vexp(load_f32(line, 4 * i) - set_f32(top)))


@jit
def greatest(line, n, least):
    """The greatest of n scores at an address, and of `least`."""
    top = set_f32(least)
    for i in range(0, n, TILE):
        top = vmax(top, mask(load_f32(line, 4 * i), 0, n - i, _NONE))
    return np.float32(hmax(top))
