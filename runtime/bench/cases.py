"""What is measured, and the figures."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..attend import Attend, Full
from ..keep import Keep, KeepAll
from ..methods import called, changed_options
from ..prefill import Exact, Prefill

KEEP_ALL = KeepAll()
READ = 4096
"""Tokens that are read before the rest of a depth is filled."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all cases of a run share.

    attends: the methods, measured one after the other over the same K and V. folder: K and V are
    on disk, in packs in this folder that are removed afterwards; None: in memory. n_read: tokens
    that are read; the rest of a depth is filled (`Context.fill`). record: a file for the choices of
    the method, written in the run that does not count. keep: where it evicts, all of a depth is
    read, and each repetition continues after the last. prefill: how prompts are read.
    """

    type_k: str = "f16"
    type_v: str = "f16"
    attends: tuple[Attend, ...] = (Full(),)
    folder: Path | None = None
    n_read: int = READ
    record: Path | None = None
    repetitions: int = 5
    keep: Keep = KEEP_ALL
    prefill: Prefill = Exact()  # noqa: RUF009 - frozen, without fields


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: read `n_prompt` or generate `n_gen` tokens after `n_depth` tokens.

    cold: at the start, no K and V on disk are in memory.
    """

    n_prompt: int
    n_gen: int
    n_depth: int
    cold: bool = False

    @property
    def test(self) -> str:
        """llama-bench's short name: pp512, tg128 @ d8192."""
        name = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        name += f" @ d{self.n_depth}" if self.n_depth else ""
        return f"{name} cold" if self.cold else name


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one case; speeds in tokens per second, times in nanoseconds."""

    case: Case
    model_filename: str
    model_type: str
    model_size: int
    model_n_params: int
    n_threads: int
    type_k: str
    type_v: str
    kv: str
    """ "ram" or "disk"."""
    method: str
    prefill: str
    filled: bool
    """Whether a part of the depth was filled, not read."""
    samples_ns: list[int] = field(default_factory=list)
    index_samples_ns: list[float] = field(default_factory=list)
    """Part of them: choosing what to attend to, where the method chooses."""
    attention_samples_ns: list[float] = field(default_factory=list)
    """Part of them: attending to it."""
    read_samples: list[float] = field(default_factory=list)
    """Bytes of the index and of chosen rows that were read, where the method chooses."""
    disk_samples: list[int] = field(default_factory=list)
    """Bytes of K and V that were read from disk, in cold cases."""

    @property
    def samples_ts(self) -> list[float]:
        n_tokens = self.case.n_prompt + self.case.n_gen
        return [n_tokens * 1e9 / ns for ns in self.samples_ns]

    def per_token(self, samples: list[float] | list[int]) -> float | None:
        """The mean of the repetitions for one token; None where there is no figure."""
        n_tokens = self.case.n_prompt + self.case.n_gen
        return statistics.fmean(samples) / n_tokens if any(samples) else None

    def as_dict(self) -> dict[str, Any]:
        """llama-bench's JSON keys, and kvarn's own."""
        facts = asdict(self)
        samples_ns = facts.pop("samples_ns")
        parts = {
            "index_ns": self.per_token(facts.pop("index_samples_ns")),
            "attention_ns": self.per_token(facts.pop("attention_samples_ns")),
            "read_bytes": self.per_token(facts.pop("read_samples")),
            "disk_bytes": self.per_token(facts.pop("disk_samples")),
        }
        return {
            **facts.pop("case"),
            **facts,
            "test": self.case.test,
            **parts,
            "avg_ns": round(statistics.fmean(samples_ns)),
            "stddev_ns": round(_deviation(samples_ns)),
            "avg_ts": statistics.fmean(self.samples_ts),
            "stddev_ts": _deviation(self.samples_ts),
            "samples_ns": samples_ns,
            "samples_ts": self.samples_ts,
        }


def _deviation(samples: list[float] | list[int]) -> float:
    return statistics.stdev(samples) if len(samples) > 1 else 0.0


def method_name(attend: Attend, keep: Keep = KEEP_ALL) -> str:
    """The methods with those of their options that are not the defaults: "topk index=flat"."""
    names = [called(attend)]
    if keep != KEEP_ALL:
        names += [f"keep={keep.name}", *(f"keep {option}" for option in changed_options(keep))]
    return " ".join(names)
