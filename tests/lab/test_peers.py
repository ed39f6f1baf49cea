"""The comparison with llama.cpp: its files, its workers, its table."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from kvarn.runtime.loading.load import load
from kvarn.system.errors import KvarnError
from lab.peers import __main__ as peers
from lab.peers import compare, model, worker_kvarn
from lab.peers.__main__ import render
from lab.peers.compare import Row, Worker, compare_file
from lab.peers.model import MIXES, Shape, write_model

SMALL = Shape(n_layers=8, n_embd=256, n_heads=4, n_kv_heads=2, head_dim=64, n_ff=256, n_vocab=512)
ROW = Row(
    "q4_0", "decode 64", 0, "t/s", 30.0, 20.0, True, 1.5, 0.9, 26.0, 10**9, 10**8, 2 * 10**9
)  # fmt: skip


@pytest.mark.parametrize("mix", MIXES)
def test_random_models_are_what_they_say(tmp_path: Path, mix: str) -> None:
    path = tmp_path / "model.gguf"
    write_model(path, mix, SMALL)
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    most, embedding = MIXES[mix]
    assert tensors["token_embd.weight"].tensor_type == embedding
    assert tensors["blk.3.attn_q.weight"].tensor_type == most
    # Random blocks stand for weights of a standard deviation of 0.02.
    data = tensors["blk.3.attn_q.weight"].data
    values = gguf.quants.dequantize(data, tensors["blk.3.attn_q.weight"].tensor_type)
    assert values.std() == pytest.approx(0.02, rel=0.25)
    # llama.cpp's Q4_K_M keeps more bits in some layers.
    down = [tensors[f"blk.{i}.ffn_down.weight"].tensor_type for i in range(8)]
    assert (len(set(down)) > 1) == (mix == "q4_k_m")


def test_a_worker_answers_over_its_pipe(tiny_path: Path) -> None:
    settings = {"path": str(tiny_path), "n_ctx": 64, "threads": 1, "kv_type": "f16", "n_read": 12}
    with Worker("worker_kvarn", settings) as worker:
        assert worker.speed(8, 0, 16) > 0
        assert worker.speed(0, 2, 16) > 0
        assert worker.peak_bytes > 1 << 20
    assert worker.process.returncode is not None


def test_depths_are_filled_exactly(tiny_path: Path) -> None:
    peer = worker_kvarn.Peer(str(tiny_path), 64, 1, "f16", 12)
    for depth, n_prompt, n_gen in ((16, 8, 0), (4, 0, 3), (20, 1, 0)):
        command = {"n_prompt": n_prompt, "n_gen": n_gen, "n_depth": depth}
        assert worker_kvarn.answer(peer, command)["seconds"] > 0
        assert len(peer.context.tokens) == depth + n_prompt + n_gen


def test_a_dead_worker_is_an_error(tmp_path: Path) -> None:
    shared = {"n_ctx": 8, "threads": 1, "kv_type": "f16", "n_read": 8}
    with pytest.raises(KvarnError, match="a peer ended with exit code"):
        Worker("worker_kvarn", {"path": str(tmp_path / "none"), **shared})


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(["cpu 0 0 0 0 0", "cpu 90 0 0 10 0", "cpu 0 0 0 0 0", "cpu 5 0 0 95 0"])
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: next(ticks))
    with pytest.raises(KvarnError, match="90% of the CPU"):
        compare.check_idle(0)
    compare.check_idle(0)


def test_rows_take_the_better_peer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Fake:
        def __init__(self, module: str, settings: dict[str, object]) -> None:
            self.value = {"worker_kvarn": 3.0, "worker_llama": 1.0}[module]
            self.value += float(bool(settings.get("flash"))) + 7 * bool(settings.get("empty"))
            self.start_seconds, self.peak_bytes = 6 / self.value, 10**9
            self.facts = dict.fromkeys(
                ("weight_bytes_per_token", "kv_bytes_per_token", "file_bytes"), 10**8
            )

        def __enter__(self) -> "Fake":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def speed(self, *_: int) -> float:
            return self.value

    monkeypatch.setattr(compare, "Worker", Fake)
    monkeypatch.setattr(compare, "check_idle", lambda: None)
    monkeypatch.setattr(compare, "read_rate", lambda: 2e10)
    options = argparse.Namespace(threads=2, kv_type="f16", n_read=8, rounds=2, prefill_only=False)
    start, row, launching = compare_file(tmp_path, "q8_0", {"decode 64": (0, 64)}, [1], options)
    assert (start.kvarn, start.llama, start.ratio) == (2.0, 3.0, 1.5)
    assert (row.ratio, row.llama_flash, row.bandwidth) == (1.5, True, 20.0)
    assert row.of_memory == pytest.approx(3 * 2e8 / 2e10)  # weights and one token of KV
    assert row.kvarn_extra == 10**9 - 10**8 - 65 * 10**8
    assert (launching.kvarn, launching.unit) == (100.0, "ms")
    options.prefill_only = True
    (alone,) = compare_file(tmp_path, "q8_0", {"prefill 512": (512, 0)}, [0], options)
    assert (alone.test, alone.ratio) == ("prefill 512", 1.5)


def test_one_type_may_be_compared_in_prefill_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[object, ...]] = []

    def compare_none(path: Path, kind: str, cases: object, *_: object) -> list[Row]:
        asked.append((path.name, kind, cases))
        return []

    monkeypatch.setattr(peers, "compare_file", compare_none)
    monkeypatch.setattr(
        peers, "kept_model", lambda _, kind, n_layers, experts: Path(f"{kind}-{n_layers}")
    )
    wanted = ["peers", "--types", "q5_1,mxfp4", "--layers", "8", "--prefill-only"]
    monkeypatch.setattr("sys.argv", wanted)
    assert peers.main() == 0
    cases = {"prefill 512": (512, 0)}
    assert asked == [("q5_1-8", "q5_1", cases), ("mxfp4-8", "mxfp4", cases)]
    monkeypatch.setattr("sys.argv", ["peers", "--types", "q4_0,q9_9"])
    with pytest.raises(SystemExit):
        peers.main()
    assert "no file type 'q9_9'" in capsys.readouterr().err


def test_a_model_of_fewer_layers_has_a_file_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model, "LLAMA_1B", SMALL)
    for n_layers, name in ((SMALL.n_layers, "1b-q4_0.gguf"), (3, "1b-q4_0-3-layers.gguf")):
        path = model.kept_model(tmp_path, "q4_0", n_layers)
        assert path.name == name
        assert load(path).config.n_layers == n_layers


def test_a_model_with_experts_has_a_file_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(model, "LLAMA_1B", SMALL)
    monkeypatch.setattr(model, "EXPERTS_8B", replace(SMALL, n_experts=5, n_used=2))
    path = model.kept_model(tmp_path, "q4_0", SMALL.n_layers, experts=True)
    assert path.name == "8b-experts-q4_0.gguf"
    config = load(path).config
    assert {layer.feed_forward.routing.n_experts for layer in config.layers} == {5}


def test_what_a_token_reads(tiny_path: Path) -> None:
    peer = worker_kvarn.Peer(str(tiny_path), 64, 1, "f16", 12)
    found = worker_kvarn.facts(peer)
    matrices = [t for t in peer.model.file.tensors.values() if len(t.shape) == 2]
    weights = peer.model.transformer.weights
    assert found["weight_bytes_per_token"] == sum(t.data.nbytes for t in matrices) - (
        0 if weights.output.weight is weights.token_embd else weights.token_embd.n_bytes
    )
    assert found["file_bytes"] == tiny_path.stat().st_size
    config = peer.model.config
    assert found["kv_bytes_per_token"] >= config.n_layers * config.n_kv_heads * config.head_dim * 4


def test_tables_hold_every_row() -> None:
    assert "| **1.50** | 90% | 26.0 |" in render([ROW], "md")
    (row,) = json.loads(render([ROW], "json"))
    assert row["ratio"] == ROW.kvarn / ROW.llama
    assert "ratio 1.50" in str(ROW)


def test_written_models_run(tmp_path: Path) -> None:
    write_model(tmp_path / "small.gguf", "q8_0", SMALL)
    logits = load(tmp_path / "small.gguf").context(8).prefill([1, 2, 3])
    assert 0.01 < logits.std() < 100
