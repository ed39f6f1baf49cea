"""The rows of `make longctx`: what is measured at each depth, and what does not fit in memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvarn.ops.attention.layout import SEGMENT, TileLayout, n_segments
from kvarn.ops.measure import read_rate
from kvarn.ops.select import means_item_bytes, sketch_bits
from kvarn.runtime.attend import Attend, Full, Hash, TopK
from kvarn.runtime.bench import Observer, Result, Setting, run_settings
from kvarn.runtime.bench.measure import Sizes
from kvarn.runtime.engine import on_engine
from kvarn.runtime.memory import available_bytes, human_bytes
from kvarn.runtime.prefill import Exact, Prefill, SparsePrefill
from kvarn.runtime.prefill.sparse import INDEXES

from ..peers.compare import Worker, check_idle

if TYPE_CHECKING:
    from pathlib import Path

    from kvarn.runtime.model import Model

METHODS: dict[str, Callable[[str], Attend]] = {
    "full": lambda budget: Full(),
    "hash": lambda budget: Hash(budget=budget),
    "topk sketch": lambda budget: TopK(budget=budget, index="sketch"),
    "topk means": lambda budget: TopK(budget=budget, tail="means"),
    "topk flat": lambda budget: TopK(budget=budget, index="flat"),
}
"""Name in the table → the method with this budget. No name has a comma: `--methods` lists them."""

_INDEX_OF = {"hash": "hash", "sketch": "topk sketch"}
PREFILLS: dict[str, Prefill] = {
    "full": Exact(),
    **{_INDEX_OF[index]: SparsePrefill(index=index) for index in INDEXES},
}
"""Name in the table → how prompts are read that are timed beside it: those of the same index."""

CHUNK_TOKENS = 512
"""Tokens of a prompt that is read after the depth: one chunk."""
QUESTION = 20
"""Tokens of a question about the depth."""

ROOM_BYTES = 3 << 29
"""Kept free beside K, V and indexes, for the methods' scratch and for other programs."""


@dataclass(frozen=True)
class Row:
    """One method at one depth; times in milliseconds a token, unless they say seconds.

    tokens_per_second  of decoding; None where it was not measured: `why` says the reason
    index_ms           choosing what to attend to, where the method chooses
    attention_ms       attending to it
    of_memory          share of the tokens per second that are possible when all weights are read at
                       `bandwidth`, and all K and V, or the index and the chosen rows
    bandwidth          GB/s that all threads read immediately before
    prefill            how prompts are read beside it (`PREFILLS`); "": none are
    read_per_second    tokens per second of a prompt of 512 tokens
    question_seconds   from a question of 20 tokens to the logits of its first answer token
    """

    depth: int
    who: str
    tokens_per_second: float | None = None
    index_ms: float | None = None
    attention_ms: float | None = None
    of_memory: float | None = None
    bandwidth: float | None = None
    prefill: str = ""
    read_per_second: float | None = None
    question_seconds: float | None = None
    why: str = ""

    def __str__(self) -> str:
        said = self.why or f"{self.tokens_per_second:.2f} t/s"
        if self.prefill:
            said += (
                f"; {self.prefill} prefill of {CHUNK_TOKENS} tokens {self.read_per_second:.1f} "
                f"t/s, of a question {self.question_seconds:.2f} s"
            )
        return f"{self.who} at {self.depth:,}: {said}"


@dataclass(frozen=True)
class Plan:
    """What to measure. n_read tokens are read for real, the rest of a depth is filled.

    repetitions: of decoding; prompts are timed once, as those that are read exactly take minutes.
    prompts: whether they are timed at all.
    """

    methods: tuple[str, ...] = tuple(METHODS)
    budget: str = "1%"
    kv_type: str = "q8_0"
    n_read: int = 1024
    n_gen: int = 16
    repetitions: int = 3
    threads: int = 2
    prompts: bool = True


def bytes_needed(model: Model, plan: Plan, depth: int) -> int:
    """Memory for K and V, and the indexes, of a context that generates after `depth` tokens."""
    config = model.config
    layout = TileLayout(config.head_dim, plan.kv_type, plan.kv_type)
    bits = sketch_bits(config.head_dim)
    means = means_item_bytes(config.head_dim)
    item = 4 + 2 + bits // 8 + means  # signatures, factors, sketches, means
    segment = layout.segment_bytes(config.n_kv_heads) + config.n_kv_heads * SEGMENT * item
    longest = max(plan.n_gen, plan.prompts * CHUNK_TOKENS)
    return n_segments(depth + longest) * config.n_kv_layers * segment + ROOM_BYTES


def llama_bytes_needed(model: Model, plan: Plan, depth: int) -> int:
    """The same for llama.cpp, whose K and V are also in the state from which they are restored."""
    config = model.config
    layout = TileLayout(config.head_dim, plan.kv_type, plan.kv_type)
    segment = layout.segment_bytes(config.n_kv_heads)
    return 2 * n_segments(depth + plan.n_gen) * config.n_kv_layers * segment + ROOM_BYTES


def rows_at(model: Model, depth: int, plan: Plan, observer: Observer) -> Iterator[Row]:
    """kvarn's rows at one depth, of each method, then llama.cpp's.

    Raises `KvarnError` where other programs keep the CPU busy.
    """
    if why := _lacks(bytes_needed(model, plan, depth)):
        yield Row(depth, "kvarn", why=why)
    else:
        yield from _ours(model, depth, plan, observer)
    if why := _lacks(llama_bytes_needed(model, plan, depth)):
        yield Row(depth, "llama.cpp", why=why)
    else:
        yield _llama(model.path, depth, plan)


def _lacks(needed: int) -> str:
    """Why so many bytes do not fit in memory; "" if they do."""
    available = available_bytes()
    if needed <= available:
        return ""
    sizes = f"{human_bytes(needed)} ({needed:,} bytes) of memory"
    return f"needs {sizes}, {human_bytes(available)} is available"


def _ours(model: Model, depth: int, plan: Plan, observer: Observer) -> Iterator[Row]:
    results = run_settings(model, depth, [*_runs(plan)], observer)
    for name in plan.methods:
        bandwidth = _idle_bandwidth()
        row = _row(model, name, next(results), bandwidth)
        if plan.prompts and name in PREFILLS:
            read, question = next(results), next(results)
            row = replace(
                row,
                prefill=read.prefill,
                read_per_second=read.as_dict()["avg_ts"],
                question_seconds=question.as_dict()["avg_ns"] / 1e9,
            )
        yield row


def _runs(plan: Plan) -> Iterator[tuple[Sizes, Setting]]:
    """Of each method decoding, and the prompts that are timed beside it."""
    kv = plan.kv_type, plan.kv_type
    for name in plan.methods:
        attends = (METHODS[name](plan.budget),)
        decoding = Setting(*kv, attends, n_read=plan.n_read, repetitions=plan.repetitions)
        yield [(0, plan.n_gen)], decoding
        if plan.prompts and name in PREFILLS:
            yield (
                [(CHUNK_TOKENS, 0), (QUESTION, 0)],
                replace(decoding, repetitions=1, prefill=PREFILLS[name]),
            )


def _idle_bandwidth() -> float:
    check_idle()
    return on_engine(read_rate) / 1e9


def _row(model: Model, name: str, result: Result, bandwidth: float) -> Row:
    figures = result.as_dict()
    config, speed = model.config, figures["avg_ts"]
    layout = TileLayout(config.head_dim, result.type_k, result.type_v)
    token = config.n_kv_layers * layout.segment_bytes(config.n_kv_heads) / SEGMENT
    read = figures["read_bytes"]  # None where everything is read
    read = result.case.n_depth * token if read is None else read
    index, attention = (
        None if figures[part] is None else figures[part] / 1e6
        for part in ("index_ns", "attention_ns")
    )
    possible = bandwidth * 1e9 / (model.transformer.weights.bytes_per_token + read)
    return Row(result.case.n_depth, name, speed, index, attention, speed / possible, bandwidth)


def _llama(path: Path, depth: int, plan: Plan) -> Row:
    """llama.cpp with the better of flash attention on and off."""
    settings = {
        "path": str(path),
        "n_ctx": depth + plan.n_gen * (plan.repetitions + 1),
        "threads": plan.threads,
        "kv_type": plan.kv_type,
        "n_read": plan.n_read,
    }
    speeds = []
    bandwidth = _idle_bandwidth()
    for flash in (False, True):
        if not flash and plan.kv_type != "f16":
            continue  # llama.cpp quantises V only with flash attention
        with Worker("worker_llama", {**settings, "flash": flash}) as worker:
            worker.speed(0, 2, depth)
            each = [worker.speed(0, plan.n_gen, depth) for _ in range(plan.repetitions)]
            speeds.append(statistics.median(each))
    return Row(depth, "llama.cpp", max(speeds), bandwidth=bandwidth)
