"""Benchmarks speak llama-bench's language."""

import csv
import io
import json

import pytest

from kvarn.runtime.bench import Case, Result, render, run_case
from kvarn.runtime.model import Model


@pytest.fixture(scope="module")
def results(tiny: Model) -> list[Result]:
    return [run_case(tiny, Case(8, 0, 0), 2), run_case(tiny, Case(0, 4, 16), 2)]


def test_json_has_llama_benchs_keys(results: list[Result]) -> None:
    rows = json.loads(render(results, "json"))
    assert [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows] == [(8, 0, 0), (0, 4, 16)]
    for row in rows:
        assert len(row["samples_ts"]) == len(row["samples_ns"]) == 2
        assert row["avg_ts"] == pytest.approx(sum(row["samples_ts"]) / 2)
        assert row["stddev_ts"] >= 0


def test_a_speed_is_tokens_over_time(results: list[Result]) -> None:
    assert results[0].samples_ts[0] == pytest.approx(8e9 / results[0].samples_ns[0])


def test_csv_and_markdown_have_a_row_per_case(results: list[Result]) -> None:
    rows = list(csv.DictReader(io.StringIO(render(results, "csv"))))
    assert [row["test"] for row in rows] == ["pp8", "tg4 @ d16"]
    lines = render(results, "md").splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
