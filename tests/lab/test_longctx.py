"""The table of long contexts: one context for all methods, and words for what does not fit."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvarn.runtime.bench import Observer
from kvarn.runtime.context import Context
from kvarn.runtime.model import Model
from kvarn.system.errors import KvarnError
from lab.longctx import __main__ as front
from lab.longctx import table
from lab.longctx.table import METHODS, Plan, bytes_needed, rows_at

FAST = Plan(n_read=64, n_gen=2, repetitions=1)
EAR = Observer()
DECODING = Plan(n_read=64, n_gen=2, repetitions=1, prompts=False)


class FakeWorker:
    """llama.cpp, always as fast."""

    def __init__(self, module: str, settings: dict) -> None:
        assert module == "worker_llama"
        self.speed_now = 20.0 if settings["flash"] else 10.0

    def __enter__(self) -> "FakeWorker":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def speed(self, n_prompt: int, n_gen: int, depth: int) -> float:
        return self.speed_now


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "check_idle", lambda: None)
    monkeypatch.setattr(table, "read_rate", lambda: 2e10)
    monkeypatch.setattr(table, "Worker", FakeWorker)


def test_every_method_has_a_row_and_llama(tiny: Model) -> None:
    plan = replace(DECODING, kv_type="f16")
    rows = list(rows_at(tiny, 2048, plan, Observer()))
    assert [row.who for row in rows] == [*METHODS, "llama.cpp"]
    full, *sparse, llama = rows
    weights = tiny.transformer.weights.bytes_per_token
    kv = 2048 * 2 * 2 * 2 * 32 * 2  # layers, KV heads, K and V, padded elements, bytes
    assert full.of_memory == pytest.approx(full.tokens_per_second * (weights + kv) / 2e10)
    assert full.index_ms is None
    hashed = next(row for row in sparse if row.who == "hash")
    read = 2 * 2 * (2048 - 256) * 4  # signatures of 32 bits, but of sinks and window
    chosen = 2 * 2 * 128 * (4 * 16 + 256)  # at most: f16, all heads choose others
    least = hashed.tokens_per_second * (weights + read) / 2e10
    most = hashed.tokens_per_second * (weights + read + chosen) / 2e10
    assert least < hashed.of_memory < most
    assert all(row.index_ms > 0 and row.attention_ms > 0 for row in sparse)
    assert (llama.tokens_per_second, llama.bandwidth) == (20.0, 20.0)
    assert {row.prefill for row in rows} == {""}
    assert {row.read_per_second for row in rows} == {row.question_seconds for row in rows} == {None}


def test_prompts_are_timed_beside_the_methods_whose_index_they_use(tiny: Model) -> None:
    """At 9,000 tokens: sparse prefill begins at 8,192."""
    rows = list(rows_at(tiny, 9000, replace(FAST, methods=("full", "hash", "topk flat")), EAR))
    full, hashed, flat, llama = rows
    assert (full.prefill, hashed.prefill, flat.prefill, llama.prefill) == (
        "exact",
        "sparse index=hash",
        "",
        "",
    )
    for row in (full, hashed):
        assert row.read_per_second > 0 and row.question_seconds > 0
        assert f"{row.prefill} prefill of 512 tokens" in str(row)
    assert flat.read_per_second is flat.question_seconds is None


def test_what_is_timed_of_prompts_reads_sparsely(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a chunk, and a question of 20 tokens, each once uncounted and once counted."""
    contexts = []
    real = Model.context

    def context(model: Model, *args: object) -> Context:
        contexts.append(real(model, *args))
        return contexts[-1]

    monkeypatch.setattr(Model, "context", context)
    (row, _) = rows_at(tiny, 9000, replace(FAST, methods=("hash",)), EAR)
    decoding, prompts = contexts
    first, last = (layer.steps for layer in prompts.stats.prompt_layers)
    assert first == 2 * (512 + 20) > last > 0  # of the last layer, the last tokens alone
    assert not decoding.stats.prompt_layers and row.prefill == "sparse index=hash"


def test_every_method_can_be_named_in_a_list() -> None:
    assert front._methods(",".join(METHODS)) == tuple(METHODS)
    assert front._methods("full, topk sketch") == ("full", "topk sketch")


def test_what_does_not_fit_is_left_out_in_bytes(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "available_bytes", lambda: 1 << 20)
    needed = bytes_needed(tiny, FAST, 1 << 20)
    kv = 1025 * 2 * 2 * 64 * (16 * (32 + 32) + 16 * 4)
    assert needed == kv + 1025 * 1024 * 2 * 2 * (4 + 2 + 8 + 4) + (3 << 29)
    ours, llama = rows_at(tiny, 1 << 20, FAST, Observer())
    assert f"({needed:,} bytes) of memory, 1 MiB is available" in ours.why
    assert f"({2 * kv + (3 << 29):,} bytes) of memory" in llama.why
    assert ours.tokens_per_second is llama.tokens_per_second is None


def test_a_busy_machine_is_not_measured(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy() -> None:
        raise KvarnError("not measuring: other programs use 50% of the CPU")

    monkeypatch.setattr(table, "check_idle", busy)
    with pytest.raises(KvarnError, match="not measuring"):
        next(rows_at(tiny, 64, FAST, Observer()))


def test_the_command_prints_a_table_and_writes_json(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    options = (
        "--depths 256,2048 --methods full,hash --read 64 --tokens 2 --repetitions 1 --threads 1 "
        "--no-prompts"
    )
    arguments = ["-m", str(tiny_path), *options.split(), "--json", str(out)]
    assert front.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 2 * 3
    assert len({line.count("|") for line in lines}) == 1
    assert [row["who"] for row in json.loads(out.read_text())] == ["full", "hash", "llama.cpp"] * 2
    assert front.main([*arguments, "--read", "0"]) == 1
    assert capsys.readouterr().err == "longctx: every number is expected to be 1 or more\n"
    with pytest.raises(SystemExit):
        front.main(["--methods", "dance"])
    assert "unknown method 'dance'" in capsys.readouterr().err
