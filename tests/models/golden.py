"""Writes the golden logits and greedy ids of the tiny models, computed by llama.cpp.

Run by hand from the folder of the repository, with llama-cpp-python installed:
`python -m tests.models.golden [NAME…]`. For every model it takes the first seed whose greedy run
never comes near a tie and does not fall into a loop at once, so that exact ids are a fair question.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from . import tiny_cases, tiny_lengths, tiny_low, tiny_models, tiny_quants
from .llama_oracle import oracle
from .tiny.case import Tiny

FOLDER = Path(__file__).parent / "golden"
N_GREEDY = 64
# Steps whose whole logits are kept: the prompt's end, around windows and chunks, the last.
KEPT = (0, 1, 7, 31, 63)
# The least gap between the two best logits, in units of the logits' spread: well above the error of
# a float32 forward pass (below 1e-4) and of a float16 KV cache (1e-3); for gemma also above that of
# ggml's float16 table of gelu (1e-3; 1e-2 after 46 layers), which other implementations lack.
MARGIN = 1.5e-2
MARGINS = {"gemma2-46": 3e-2, "gemma2": 2e-2, "gemma3": 2e-2}
DISTINCT = 12


def make(case: Tiny) -> None:
    """Find a seed and store its run."""
    for seed in range(1000):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.gguf"
            tiny_models.write(path, case, seed)
            prompt = tiny_models.prompt(case, seed)
            with oracle(path, case.n_ctx, case.n_vocab) as model:
                ids, logits = model.greedy(prompt, N_GREEDY)
        top = np.sort(logits, axis=1)[:, -2:]
        margin = float((top[:, 1] - top[:, 0]).min() / logits.std())
        least = MARGINS.get(case.name, MARGINS.get(case.architecture, MARGIN))
        if margin > least and len(set(ids)) >= DISTINCT:
            break
    else:
        raise SystemExit(f"{case.name}: no seed gives a run without ties or loops")
    np.savez(
        FOLDER / f"{case.name}.npz",
        seed=np.int64(seed),
        ids=np.array(ids, np.int32),
        steps=np.array(KEPT, np.int32),
        logits=logits[list(KEPT)].astype(np.float32),
        margin=np.float64(margin),
    )
    print(f"{case.name}: seed {seed}, margin {margin:.4f}, {len(set(ids))} distinct ids")


def make_quantised() -> None:
    """Store the logits of every quantised model over the same tokens, in float16."""
    logits = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in tiny_quants.KINDS:
            path = Path(folder) / f"{kind}.gguf"
            tiny_quants.write(path, kind)
            with oracle(path, 256, tiny_quants.CASE.n_vocab) as model:
                logits[kind] = model.forward(tiny_quants.ids()).astype(np.float16)
            print(kind, logits[kind].astype(np.float32).std())
    np.savez(FOLDER / "quantised.npz", **logits)


def make_low() -> None:
    """Store llama.cpp's errors of the models of `tiny_low`."""
    errors = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in tiny_low.KINDS:
            tiny_low.write(path := Path(folder) / "low.gguf", name, kind)
            with oracle(path, 256, tiny_low.case_of(name).n_vocab) as model:
                logits = model.forward(tiny_low.ids(name))
            error = tiny_low.error(logits, tiny_low.exact(name, kind))
            errors[f"{name} {kind}"] = round(error, 6)
    (FOLDER / "low.json").write_text(json.dumps(errors, indent=1) + "\n")


def make_lengths() -> None:
    """Store the last logits and greedy ids after prompts of other lengths."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in map(tiny_lengths.case_of, tiny_lengths.NAMES):
            tiny_models.write(path := Path(folder) / "tiny.gguf", case, tiny_lengths.SEED)
            for length in tiny_lengths.LENGTHS:
                with oracle(path, case.n_ctx, case.n_vocab) as model:
                    run = tiny_lengths.kept(model, case, length)
                results |= dict(zip(tiny_lengths.keys(case.name, length), run))
    np.savez(FOLDER / "lengths.npz", **results)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for case in tiny_cases.CASES:
        if not sys.argv[1:] or case.name in sys.argv[1:]:
            make(case)
    if not sys.argv[1:] or "quantised" in sys.argv[1:]:
        make_quantised()
    if not sys.argv[1:] or "low" in sys.argv[1:]:
        make_low()
    if not sys.argv[1:] or "lengths" in sys.argv[1:]:
        make_lengths()
