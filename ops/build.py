"""Compiles kernels ahead of their first use: `python -m kvarn.ops.build` (`make build`).

    --types Q8_0,Q4_K,…    weight types, default: the default model's and the commonest others
    --heads E:H:J,…        attention shapes (head_dim, query heads, KV heads)
    --kv f16,q8_0,…        types of the KV cache
    --methods E:H:J,…      attention shapes for which sparse attention and eviction are compiled too

Kernels that are in the cache already are only loaded.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from ..jit.kernel_cache import Counts, place
from ..system.errors import KvarnError
from ..system.terminal import say, show
from . import attention, evict, linear, pointwise, select
from .errors import OpsError
from .types import QUANT_TYPES

# The default model is Q8_0 with F32 norms; most other models are published in the other types.
TYPES = ("F32", "F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")
# head_dim:heads:KV heads; kernels depend on head_dim and on heads per KV head.
HEADS = ("64:3:3", "64:32:8", "128:32:8")
KV_TYPES = ("f16",)
METHODS = ("64:3:3",)  # the default model's


def steps(
    types: Sequence[str],
    heads: Sequence[str],
    kv_types: Sequence[str],
    methods: Sequence[str] = (),
) -> list[tuple[str, Callable[[], None]]]:
    """What to compile, each with a name for the progress line.

    Raises OpsError for unknown types and impossible shapes.
    """
    for name in types:
        if name not in QUANT_TYPES:
            raise OpsError(
                f"compiling kernels for type {name}: no such type, expected one such as Q8_0"
            )
    shapes, sparse = ([_shape(text) for text in texts] for texts in (heads, methods))
    rooms = (
        (attention, "attention", shapes),
        (select, "sparse attention", sparse),
        (evict, "eviction", sparse),
    )
    todo: list[tuple[str, Callable[[], None]]] = [("norms, rope, activations", pointwise.warm)]
    todo += [(f"{name} weights", partial(linear.warm, [name])) for name in types]
    for room, what, wanted in rooms:
        for head_dim, *n_heads in wanted:
            for kv in kv_types:
                name = f"{what} {head_dim}:{n_heads[0]}:{n_heads[1]} over {kv}"
                layout = attention.TileLayout(head_dim, kv, kv)
                todo.append((name, partial(room.warm, layout, *n_heads)))
    return todo


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.split(":")
    if len(parts) == 3 and all(p.isascii() and p.isdigit() and int(p) for p in parts):
        head_dim, n_heads, n_kv_heads = map(int, parts)
        if n_heads % n_kv_heads == 0:
            return head_dim, n_heads, n_kv_heads
    raise OpsError(
        f"compiling attention for heads {text}: expected HEAD_DIM:HEADS:KV_HEADS, such as 64:32:8"
    )


def build(todo: Sequence[tuple[str, Callable[[], None]]], say: Callable[[str], None]) -> None:
    """Take the steps; say what each of them compiled and how long it took."""
    begin = time.perf_counter()
    for i, (name, warm) in enumerate(todo, 1):
        compiled, start = Counts.compiled, time.perf_counter()
        warm()
        seconds, new = time.perf_counter() - start, Counts.compiled - compiled
        what = f"compiled {new} functions in {seconds:.1f} s" if new else "in the cache"
        say(f"[{i}/{len(todo)}] {name}: {what}")
    where = f"in {folder}" if (folder := place()) else "kept nowhere"
    say(f"ready after {time.perf_counter() - begin:.1f} s, {where}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m kvarn.ops.build", description="Compile kernels ahead of their first use."
    )
    for option, default, what in (
        ("--types", TYPES, "weight types"),
        ("--heads", HEADS, "HEAD_DIM:HEADS:KV_HEADS"),
        ("--kv", KV_TYPES, "KV cache types"),
        ("--methods", METHODS, "HEAD_DIM:HEADS:KV_HEADS"),
    ):
        parser.add_argument(option, default=",".join(default), help=f"{what} (%(default)s)")
    options = parser.parse_args(arguments)
    lists = [[part for part in text.split(",") if part] for text in vars(options).values()]
    try:
        build(steps(*lists), show)
    except KvarnError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
