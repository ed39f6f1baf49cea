"""Timing prefill and decode, reported as llama-bench reports them."""

from __future__ import annotations

import csv
import io
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .store import Disk, Ram

if TYPE_CHECKING:
    from .context import Context
    from .model import Model


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: read `n_prompt` or generate `n_gen` tokens after `n_depth` tokens."""

    n_prompt: int
    n_gen: int
    n_depth: int
    type_k: str = "f16"
    type_v: str = "f16"

    @property
    def test(self) -> str:
        """llama-bench's short name: pp512, tg128 @ d8192."""
        name = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        return f"{name} @ d{self.n_depth}" if self.n_depth else name

    def __str__(self) -> str:
        return self.test


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one case; speeds in tokens per second, times in nanoseconds."""

    case: Case
    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    n_threads: int
    samples_ns: list[int] = field(default_factory=list)

    @property
    def samples_ts(self) -> list[float]:
        n_tokens = self.case.n_prompt + self.case.n_gen
        return [n_tokens * 1e9 / ns for ns in self.samples_ns]

    def as_dict(self) -> dict[str, Any]:
        """llama-bench's JSON keys."""
        facts = asdict(self)
        samples_ns = facts.pop("samples_ns")
        return {
            **facts,
            **facts.pop("case"),
            "test": self.case.test,
            "avg_ns": round(statistics.fmean(samples_ns)),
            "stddev_ns": round(_deviation(samples_ns)),
            "avg_ts": statistics.fmean(self.samples_ts),
            "stddev_ts": _deviation(self.samples_ts),
            "samples_ns": samples_ns,
            "samples_ts": self.samples_ts,
        }


def _deviation(samples: list[float] | list[int]) -> float:
    return statistics.stdev(samples) if len(samples) > 1 else 0.0


def run_case(model: Model, case: Case, repetitions: int, folder: Path | None = None) -> Result:
    """Time `case` `repetitions` times after one warm-up; tokens are random, depths filled once.

    folder: keep the KV cache on disk, in a pack that is made there and removed after; what is timed
    then includes the saving.
    """
    from ..ops.threads import n_threads
    from .engine import on_engine

    file = model.file
    result = Result(
        case,
        str(model.path),
        f"{file.architecture} {model.name}",
        sum(tensor.n_bytes for tensor in file.tensors.values()),
        file.n_parameters,
        on_engine(n_threads),
    )
    n_tokens = case.n_depth + case.n_prompt + case.n_gen
    if folder is None:
        _repeat(model.context(n_tokens, store=Ram(case.type_k, case.type_v)), result, repetitions)
        return result
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as aside:
        disk = Disk(Path(aside) / "pack", case.type_k, case.type_v)
        with model.context(n_tokens, store=disk) as context:
            _repeat(context, result, repetitions)
    return result


def _repeat(context: Context, result: Result, repetitions: int) -> None:
    """Add the times of the repetitions to `result`."""
    case = result.case
    rng = np.random.default_rng(0)
    ids = rng.integers(0, context.model.config.n_vocab, context.n_ctx).tolist()
    if case.n_depth:
        context.prefill(ids[: case.n_depth])
    for repetition in range(repetitions + 1):
        context.truncate(case.n_depth)
        began = time.perf_counter_ns()
        _measured(context, case, ids[case.n_depth :])
        if repetition:  # the first one warms caches and loads kernels
            result.samples_ns.append(time.perf_counter_ns() - began)


def _measured(context: Context, case: Case, ids: list[int]) -> None:
    if case.n_prompt:
        context.prefill(ids)
    for token in ids if case.n_gen else ():
        context.decode(token)


def render(results: list[Result], output: str) -> str:
    """The results as a markdown table, a JSON list of objects or CSV."""
    rows = [result.as_dict() for result in results]
    if output == "json":
        return json.dumps(rows, indent=2)
    if output == "csv":
        text = io.StringIO()
        plain = [{k: v for k, v in row.items() if not isinstance(v, list)} for row in rows]
        writer = csv.DictWriter(text, plain[0] if plain else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(plain)
        return text.getvalue().rstrip("\n")
    lines = [
        "| model | size | params | threads | KV | test | t/s |",
        "|---|---:|---:|---:|---|---|---:|",
    ]
    lines += [
        f"| {row['model_type']} | {row['model_size'] / 2**20:.1f} MiB | "
        f"{row['model_n_params'] / 1e6:.2f} M | {row['n_threads']} | "
        f"{row['type_k']}/{row['type_v']} | {row['test']} | "
        f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)
