"""Benchmarks speak llama-bench's language, at depths read or filled, in memory or on disk."""

import csv
import io
import json
from pathlib import Path

import pytest

import kvarn
from kvarn.runtime.bench import (
    Case,
    Observer,
    Result,
    Setting,
    method_name,
    page_cache,
    render,
    run_depth,
)
from kvarn.runtime.model import Model

HASH = kvarn.Hash(budget=32, sink=4, window=16)


class Ear(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.bars: dict[str, list[tuple[int, int]]] = {}

    def say(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, what: str):
        return lambda done, total: self.bars.setdefault(what, []).append((done, total))


@pytest.fixture(scope="module")
def results(tiny: Model) -> list[Result]:
    two = Setting(repetitions=2)
    return [*run_depth(tiny, 0, [(8, 0)], two), *run_depth(tiny, 16, [(0, 4)], two)]


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """A folder whose files the page cache can forget, which those of a tmpfs are not."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        pytest.skip("the page cache of this system cannot be asked to forget")
    kinds = {Path(line.split()[1]): line.split()[2] for line in mounts.read_text().splitlines()}
    if next(kinds[path] for path in tmp_path.parents if path in kinds) == "tmpfs":
        pytest.skip(f"{tmp_path} is in memory")
    return tmp_path


def test_json_has_llama_benchs_keys(results: list[Result]) -> None:
    rows = json.loads(render(results, "json"))
    assert [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows] == [(8, 0, 0), (0, 4, 16)]
    for row in rows:
        assert len(row["samples_ts"]) == len(row["samples_ns"]) == 2
        assert row["avg_ts"] == pytest.approx(sum(row["samples_ts"]) / 2)
        assert row["stddev_ts"] >= 0
        assert (row["kv"], row["method"], row["filled"]) == ("ram", "full", False)
        assert row["index_ns"] is row["attention_ns"] is row["disk_bytes"] is None


def test_a_speed_is_tokens_over_time(results: list[Result]) -> None:
    assert results[0].samples_ts[0] == pytest.approx(8e9 / results[0].samples_ns[0])


def test_csv_and_markdown_have_a_row_per_case(results: list[Result]) -> None:
    rows = list(csv.DictReader(io.StringIO(render(results, "csv"))))
    assert [row["test"] for row in rows] == ["pp8", "tg4 @ d16"]
    lines = render(results, "md").splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert "choosing" not in lines[0]


def test_deeper_contexts_are_filled_and_indexed(tiny: Model) -> None:
    ear = Ear()
    setting = Setting("q8_0", "q8_0", (HASH,), n_read=600, repetitions=2)
    (result,) = run_depth(tiny, 3000, [(0, 3)], setting, ear)
    assert list(ear.bars) == ["reading 600", "filling up to 3,000", "indexing"]
    assert ear.bars["filling up to 3,000"][-1] == (3000, 3000)
    assert ear.lines == ["tg3 @ d3000"]
    (row,) = json.loads(render([result], "json"))
    assert (row["type_k"], row["filled"]) == ("q8_0", True)
    assert row["method"] == "hash budget=32 sink=4 window=16"
    assert 0 < row["index_ns"] + row["attention_ns"] < row["avg_ns"] / 3
    assert "| choosing ms/t | attending ms/t |" in render([result], "md")


def test_questions_at_depth_are_timed_to_their_first_token(tiny: Model) -> None:
    setting = Setting(n_read=600, repetitions=1, prefill=kvarn.SparsePrefill(k=16, from_=1024))
    (result,) = run_depth(tiny, 3000, [(20, 0)], setting)
    (row,) = json.loads(render([result], "json"))
    title, _, cells = render([result], "md").splitlines()
    found = dict(zip(title.split(" | "), cells.split(" | ")))
    assert found["test"] == "pp20 @ d3000" and found["prefill"] == "sparse k=16 from=1024"
    assert found["first token s"] == f"{row['avg_ns'] / 1e9:.2f}"
    assert row["index_ns"] > 0 and row["attention_ns"] > 0  # the question chose what it read


def test_a_depth_is_part_of_the_prompt(tiny: Model) -> None:
    """So what follows its last whole block reads all, and what stands in a block does not."""
    setting = Setting(n_read=600, repetitions=1, prefill=kvarn.BlocksPrefill(1024))
    for n, in_blocks in ((20, False), (500, True)):
        (result,) = run_depth(tiny, 2600, [(n, 0)], setting)
        (row,) = json.loads(render([result], "json"))
        assert row["prefill"] == "blocks size=1024"
        assert (row["attention_ns"] is not None) == in_blocks


def test_on_disk_each_generation_is_timed_warm_and_cold(tiny: Model, on_disk: Path) -> None:
    setting = Setting(attends=(HASH,), folder=on_disk, n_read=600, repetitions=2)
    results = list(run_depth(tiny, 3000, [(4, 0), (0, 3)], setting))
    assert [r.case for r in results] == [
        Case(4, 0, 3000), Case(0, 3, 3000), Case(0, 3, 3000, cold=True)
    ]  # fmt: skip
    rows = json.loads(render(results, "json"))
    assert [row["disk_bytes"] is None for row in rows] == [True, True, False]
    # At most the two full segments are read, once in each repetition.
    layout_bytes = 2 * 2 * 2 * 64 * 2048
    assert 0 < rows[2]["disk_bytes"] * 3 <= layout_bytes
    assert rows[2]["test"] == "tg3 @ d3000 cold"
    assert list(on_disk.iterdir()) == []


@pytest.mark.parametrize("kv", ["ram", "disk"])
def test_methods_are_measured_over_the_same_context(tiny: Model, tmp_path: Path, kv: str) -> None:
    ear, folder = Ear(), tmp_path if kv == "disk" else None
    methods = kvarn.Full(), HASH, kvarn.TopK(budget=32, window=16)
    setting = Setting(attends=methods, folder=folder, n_read=64, repetitions=1)
    results = run_depth(tiny, 1100, [(0, 2)], setting, ear)
    rows = [r.as_dict() for r in results if not r.case.cold]
    assert [row["method"].split()[0] for row in rows] == ["full", "hash", "topk"]
    assert [row["index_ns"] is None for row in rows] == [True, False, False]
    assert len([1 for done, total in ear.bars["filling up to 1,100"] if done == total]) == 1


def test_contexts_that_evict_are_read_and_go_on(tiny: Model) -> None:
    setting = Setting(n_read=16, repetitions=2, keep=kvarn.HashEvict(budget=40))
    (result,) = run_depth(tiny, 100, [(0, 3)], setting)
    assert len(result.samples_ns) == 2
    assert (result.method, result.filled) == ("full keep=hashevict keep budget=40", False)


def test_files_that_stay_in_memory_give_no_cold_figures(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "forget", lambda paths: None)
    ear, setting = Ear(), Setting(folder=tmp_path, n_read=64, repetitions=1)
    results = list(run_depth(tiny, 1100, [(0, 2)], setting, ear))
    assert [r.case.cold for r in results] == [False]
    assert ear.lines[-1] == "no cold figures: the system keeps the files in memory"


def test_the_page_cache_forgets_what_is_saved(on_disk: Path) -> None:
    path = on_disk / "file"
    with path.open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        page_cache.os.fsync(file.fileno())
    assert page_cache.resident_bytes([path]) == 1 << 20
    page_cache.forget([path])
    assert page_cache.resident_bytes([path]) == 0
    (on_disk / "empty").touch()
    assert page_cache.resident_bytes([on_disk / "empty"]) == 0
    with pytest.raises(FileNotFoundError):
        page_cache.resident_bytes([on_disk / "missing"])


def test_names_of_methods_say_what_was_changed() -> None:
    assert method_name(kvarn.Full()) == "full"
    assert method_name(kvarn.TopK(index="flat", budget="2%")) == "topk budget=2% index=flat"
