"""How prompts were read: "prefill" of `pack.json`, and "probe" of superblocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from ...facts import PrefillFacts, ProbeSums
from .values import number, real, text


def prefill_data(facts: PrefillFacts) -> dict[str, Any]:
    """A prompt's facts as JSON; "rerank" where it is not 1, "size" and "until" for mode blocks,
    "windows" where they stop."""
    rerank = {"rerank": facts.rerank} if facts.rerank > 1 else {}
    blocks = {"size": facts.size, "until": facts.until} if facts.size else {}
    windows = {"windows": facts.windows} if facts.windows else {}
    return {
        "mode": facts.mode,
        "index": facts.index,
        "k": facts.k,
        "from": facts.from_,
        "tail": facts.tail,
        "column digest": facts.column,
        **rerank,
        **blocks,
        **windows,
    }


def prefill_of(data: dict[str, Any]) -> PrefillFacts:
    """ValueError, KeyError or TypeError where `prefill_data` wrote something else."""
    if type(data["tail"]) is not bool:
        raise ValueError("prefill.tail is neither true nor false")
    mode, index, column = (text(data[key]) for key in ("mode", "index", "column digest"))
    rerank = number(data.get("rerank", 1), 1)
    k, from_, size, until = number(data["k"], 1), number(data["from"]), 0, 0
    if "size" in data:
        size, until = number(data["size"], 1), number(data["until"])
    windows = text(data.get("windows", ""))
    return PrefillFacts(mode, index, k, from_, data["tail"], column, rerank, size, until, windows)


def probe_data(sums: Mapping[int, ProbeSums]) -> dict[str, list[float]]:
    """The sums of probes as JSON, by layer, with all digits of floats."""
    return {str(layer): [*astuple(layer_sums)] for layer, layer_sums in sums.items()}


def probe_of(data: dict[str, Any], n_layers: int) -> dict[int, ProbeSums]:
    """ValueError, TypeError or AttributeError where `probe_data` wrote something else."""
    if not isinstance(data, dict):
        raise ValueError(f"probe is {data!r:.40}")
    sums = {}
    for layer, (n_tokens, covered, error) in data.items():
        at = number(int(layer), 0, n_layers - 1)
        sums[at] = ProbeSums(number(n_tokens, 1), real(covered), real(error))
    return sums
