"""Run by test_linear in another process: products of given.npz in the variant of KVARN_SIMD."""

import os
import sys
from pathlib import Path

import numpy as np

from kvarn.jit.arena import Arena
from kvarn.jit.variant import VARIANT
from kvarn.ops.linear import Activations, Weight, linear
from kvarn.ops.types import QUANT_TYPES

assert os.environ["KVARN_SIMD"] == VARIANT
folder = Path(sys.argv[1])
given = np.load(folder / "given.npz")
x, results = given["x"], {}
for name in given.files:
    if name != "x":
        weight = Weight.prepare(QUANT_TYPES[name], given[name], x.shape[1], name, Arena())
        act = Activations(len(x), x.shape[1])
        for part, suffix in ((x, ""), (x[:1], "_one")):
            out = results[name + suffix] = np.empty((len(part), weight.n_rows), np.float32)
            linear(act.set(part), weight, out)
np.savez(folder / "products.npz", **results)
