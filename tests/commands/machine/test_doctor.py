"""`doctor` tells what the system tells, and names each problem with its remedy."""

import copy
import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.commands.machine import doctor
from kvarn.jit import variant
from kvarn.ops import diagnostics
from kvarn.runtime import fitting as runtime_fitting
from kvarn.runtime.fitting import Speeds

from ...conftest import ROOT


@pytest.fixture(scope="module")
def report():
    return doctor.examine()


def test_facts_are_the_systems(report):
    assert report["versions"]["numba"] == version("numba")
    assert report["cpu"]["variant"] == variant.VARIANT
    assert report["cpu"]["cores"] <= report["cpu"]["logical_cpus"] <= os.cpu_count()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert report["memory"]["available_bytes"] <= report["memory"]["total_bytes"] <= pages
    assert 1 <= report["threads"]["default"] <= report["threads"]["most"]
    assert report["threads"]["region_microseconds"] > 0
    assert Path(report["cache"]["folder"]).is_dir()
    assert report["cache"]["n_kernels"] >= 1  # the region's kernel, at least


def test_json_is_the_report(report, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda roofline: report)
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report


def test_text_names_what_matters(report, capsys, monkeypatch):
    healthy = {**report, "problems": []}
    monkeypatch.setattr(doctor, "examine", lambda roofline: healthy)
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in (variant.VARIANT, report["threads"]["layer"], report["cache"]["folder"]):
        assert part in text
    assert "no problems found" in text


def test_roofline_is_measured_when_asked(monkeypatch, capsys):
    measured = {
        "read": {"1": 2e10, "2": 4e10},
        "matvec": {"Q8_0": 3e10},
        "attention": {"f16": 1e10},
        "dots": 4e11,
        "matmul": {"Q8_0": 3e11},
        "share_of_dots": {"Q8_0": 0.75},
    }
    monkeypatch.setattr(diagnostics, "roofline", lambda: measured)
    assert main(["doctor", "--roofline"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if "GB/s" in line or "Gop/s" in line]
    assert "20.0 GB/s with 1 thread" in lines[0] and "40.0 GB/s with 2 threads" in lines[1]
    assert "30.0 GB/s of Q8_0 weights, 75% of the best reading" in lines[2]
    assert "10.0 GB/s of f16 keys and values, 25% of the best reading" in lines[3]
    assert "400 Gop/s of int8 in registers" in lines[4]
    assert "300 Gop/s with Q8_0 weights" in lines[5] and "75% of the limit" in lines[5]


SICK = {
    "cpu": {"variant": "generic", "quota_cpus": 0.5},
    "threads": {"layer": "workqueue", "region_microseconds": 80.0, "most": 2},
    "memory": {"available_bytes": 1 << 20, "huge_pages": "never"},
    "cache": {
        "not_usable": [{"what": "/home: Read-only file system", "mend": "set KVARN_CACHE"}],
        "disk_free_bytes": 1 << 20,
    },
    "versions": {"gguf": "missing"},
}


def test_each_problem_has_a_remedy(report, monkeypatch):
    monkeypatch.delenv("KVARN_SIMD", raising=False)
    sick = copy.deepcopy(report)
    for section, changes in SICK.items():
        sick[section] |= changes
    problems = [*doctor._system_problems(sick), *doctor._kernel_problems(sick)]
    told = {p["what"]: p["mend"] for p in problems}
    assert len(told) == 8
    text = doctor.render({**sick, "problems": problems})
    for problem, fix in told.items():
        assert f"problem: {problem}\n    fix: {fix}" in text
    for what in ("gguf is missing", "1 MiB of memory", "huge pages", "0.5 of"):
        assert any(what in line for line in told)
    assert any("libgomp1" in fix for fix in told.values())
    assert any("KVARN_CACHE" in fix for fix in told.values())


def test_busy_machine_and_forced_variant(report, monkeypatch):
    busy = copy.deepcopy(report)
    busy["threads"] |= {"layer": "omp", "region_microseconds": 900.0}
    busy["cpu"]["variant"] = "generic"
    monkeypatch.setenv("KVARN_SIMD", "generic")
    problems = {p["what"]: p["mend"] for p in doctor._kernel_problems(busy)}
    assert problems["the generic kernels are several times slower"] == "unset KVARN_SIMD"
    assert any("keep the CPUs busy" in what for what in problems)


def test_kernels_that_cannot_run_are_a_problem_and_an_exit_code(monkeypatch, capsys):
    from kvarn.ops.errors import OpsError

    def fail():
        raise OpsError("choosing the kernels: this CPU has no f16c")

    monkeypatch.setattr(diagnostics, "variant", fail)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "problem: choosing the kernels: this CPU has no f16c" in text
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["versions"]


def test_no_place_for_kernels(report, monkeypatch, tmp_path):
    from kvarn.jit import roots

    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setattr(roots, "candidates", lambda: [blocked / "a"])
    found = diagnostics.cache()
    assert found["folder"] is None and len(found["not_usable"]) == 1
    text = doctor.render({**report, "cache": found, "problems": []})
    assert "every process compiles its kernels anew" in text


def test_fit_tells_what_a_model_takes(tiny_path, capsys, monkeypatch):
    assert main(["doctor", "--fit", str(tiny_path), "--ctx", "64K", "--no-speed", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["n_ctx"], facts["kv"], facts["method"]) == (65_536, "f16", "full")
    assert facts["memory_bytes"] == facts["context_bytes"] + facts["weights"]["resident"]
    assert facts["command"].startswith(f"kvarn run {tiny_path} --ctx 65536")
    measured = Speeds(1e9, 1e9, 1e12, 1e12)
    monkeypatch.setattr(runtime_fitting, "speeds", lambda weights, kv: measured)
    assert main(["doctor", "--fit", str(tiny_path), "--method", "topk"]) == 0
    text = capsys.readouterr().out
    for part in ("KV cache", "index", "tokens per second (not measured", "advice    it fits"):
        assert part in text


@pytest.mark.parametrize("beyond", [0, 1])
def test_fit_says_what_is_beyond_the_training_length(tiny, tiny_path, capsys, beyond):
    n_train = tiny.config.n_ctx_train
    line = ["doctor", "--fit", str(tiny_path), "--ctx", str(n_train + beyond), "--no-speed"]
    assert main([*line, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["n_ctx_train"] == n_train
    said = f"the model was trained on {n_train:,} tokens"
    assert (said in facts["advice"]) == bool(beyond)
    fewer = "the command is for those (it fits"  # which says no more what is beyond
    assert (fewer in facts["advice"]) == bool(beyond)
    assert f" --ctx {n_train} " in facts["command"]
    assert main([*line, "-c", "100M"]) == 0
    out = capsys.readouterr().out
    assert said in out and f" --ctx {n_train} " in out


def test_fit_counts_a_draft_and_names_it_in_the_command(tiny_path, capsys):
    line = ["doctor", "--fit", str(tiny_path), "--ctx", "4K", "--no-speed"]
    assert main([*line, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert main([*line, "--json", "--draft", str(tiny_path)]) == 0
    facts = json.loads(capsys.readouterr().out)
    own = facts["weights"]["resident"] + facts["context_bytes"]
    assert facts["memory_bytes"] == own + facts["draft_bytes"]
    assert facts["draft_bytes"] > facts["weights"]["resident"]
    assert facts["command"] == f"{plain['command']} --draft {tiny_path}"
    assert main([*line, "--draft", str(tiny_path)]) == 0
    assert "its context included" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["gone.gguf"], "gone.gguf: no such file"),
        (["README.md"], "not a GGUF file"),
        (["gone.gguf", "--kv-type", "q9"], "expected one of f16, q8_0, q4_0"),
        (["gone.gguf", "--lora", "README.md"], "gone.gguf: no such file"),
    ],
)
def test_fit_of_what_is_no_model_is_one_line(words, line, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["doctor", "--fit", *words]) == (2 if "q9" in words else 1)
    out, told = capsys.readouterr()
    assert (out, told.count("\n")) == ("", 1) and line in told
