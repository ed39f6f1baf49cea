"""Greedy ids of the default model, a row of JSON each: `python -m lab.arm.tokens MODELS`.

Rows: each type that the model's weights are quantised to; each method and KV type, with budgets
that the context exceeds; each method that evicts; each way to read a prompt in a filled context.
Types whose blocks of 256 do not divide the model's rows have models of random weights, which are
fed with given ids, since their own answers repeat one id.

    ["default-q4_0", [ids], [each one's logit less the next best], [the last step's first logits]]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from kvarn.ops.attention.layout import KV_TYPES
from kvarn.runtime.attend import ATTENDS
from kvarn.runtime.keep import KEEPS
from kvarn.runtime.loading.load import load
from kvarn.runtime.methods import called
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import PREFILLS
from kvarn.runtime.store import Ram
from kvarn.system.terminal import show

N_FEW, N_PROMPT, N_NEW = 40, 240, 12
N_FILLED = 1100
"""Tokens of a context from which methods choose, and in which prompts are not read exactly."""
OWN_TYPE = "q8_0"
"""Of the default model."""
BUDGET = {"budget": 32, "sink": 4, "window": 16}
SLOTS = 64
TEXT = "The miller of the village kept his books with great care. " + "".join(
    f"On day {i}, he ground {i * 7 % 90} sacks, and sold {i * 5 % 31} of them. " for i in range(40)
)
OTHERS = "q2_k q3_k q4_k_m q5_k q6_k iq4_xs mxfp4".split()
"""Types of models of random weights."""


def main(models: str) -> None:
    """Print all rows. models: a folder of "default-TYPE.gguf" and "random-TYPE.gguf"."""
    for path in sorted(Path(models).glob("*.gguf")):
        model = load(path)
        ids = [i % model.config.n_vocab for i in model.tokenizer.encode(TEXT)]
        if path.stem.startswith("random"):
            _show(path.stem, model, ids[:N_FEW], ids[N_FEW:])
            continue
        _show(path.stem, model, ids[:N_FEW])
        if path.stem == f"default-{OWN_TYPE}":
            for name, given in methods():
                _show(name, model, ids[:N_PROMPT], **given)


def methods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of rows, and arguments of `_show`."""
    for method in ATTENDS.values():
        for attend in method.variants():
            short = _within(attend.shortened())
            for kv in KV_TYPES:
                yield f"{called(attend)} {kv}", {"attend": short, "kv": kv, "n_filled": N_FILLED}
    for keep in KEEPS.values():
        for one in keep.variants():
            yield f"keep {called(one)}", {"keep": one.shortened(SLOTS)}
    for prefill in PREFILLS.values():
        for read in prefill.variants():
            yield f"prefill {called(read)}", {"prefill": read.shortened(), "n_filled": N_FILLED}


def _show(
    name: str,
    model: Model,
    prompt: list[int],
    forced: Sequence[int] = (),
    *,
    n_filled: int = 0,
    kv: str = "f16",
    **methods: Any,
) -> None:
    """Print a row. forced: what is read instead of the ids; n_filled: tokens before most of the
    prompt."""
    n_ctx = n_filled + len(prompt) + N_NEW
    with model.context(n_ctx, store=Ram(kv, kv), **methods) as context:
        if n_filled:
            context.prefill(prompt[:N_FEW])
            context.fill(n_filled)
            prompt = prompt[N_FEW:]
        logits, ids, margins = context.prefill(prompt), list[int](), list[float]()
        for n in range(N_NEW):
            second, first = np.sort(logits)[-2:]
            ids.append(int(logits.argmax()))
            margins.append(round(float(first - second), 4))
            logits = context.decode(forced[n] if forced else ids[-1])
        show(json.dumps((name, ids, margins, [round(float(x), 4) for x in logits[:5]])))


def _within(method: Any) -> Any:
    """The method with a small budget, as far as it has one."""
    known = {field.name for field in fields(method)}
    return replace(method, **{name: value for name, value in BUDGET.items() if name in known})


if __name__ == "__main__":
    main(*sys.argv[1:])
