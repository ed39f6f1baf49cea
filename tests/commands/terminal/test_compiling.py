"""Kernels are compiled by several processes, which tell of each task and may fail."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from kvarn.commands.opening import Workload
from kvarn.commands.terminal import compiling, progress
from kvarn.commands.terminal.compiling import AheadCompiler, compile_all, compile_missing
from kvarn.runtime.attend import Full, Hash, TopK
from kvarn.runtime.context.planning.request import ContextRequest
from kvarn.runtime.keep import HashEvict, KeepAll
from kvarn.runtime.rehearsal import rehearsals
from kvarn.system.errors import KvarnError


@dataclass(frozen=True)
class Task:
    """Stands for a rehearsal: `how` says what it does in its process."""

    name: str
    how: str = ""
    n_bytes: int = 0

    def __call__(self) -> None:
        if self.how == "dies":
            os._exit(3)
        if self.how == "fails":
            raise KvarnError("the model is damaged")
        time.sleep(0.01)


def test_each_task_is_told() -> None:
    said: list[str] = []
    assert compile_all([Task("prompts"), Task("generation")], said.append) == 0
    assert sorted(line.partition("] ")[2] for line in said) == [
        "generation: in the cache",
        "prompts: in the cache",
    ]
    assert [line[:5] for line in said] == ["[1/2]", "[2/2]"]


def test_functions_of_all_processes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process adds those that it has compiled since it last did."""
    monkeypatch.setattr(compiling, "TICK_SECONDS", 0.01)
    counts = SimpleNamespace(compiled=0)
    monkeypatch.setattr(compiling, "_n_compiled", lambda: counts.compiled)
    n_compiled = multiprocessing.get_context("spawn").Value("q", 100)
    Thread(target=compiling._count, args=(n_compiled,), daemon=True).start()
    for more in (3, 4):
        before, deadline = n_compiled.value, time.monotonic() + 60
        counts.compiled += more
        while n_compiled.value == before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert n_compiled.value == before + more


def test_a_process_that_ends_early_is_told() -> None:
    said: list[str] = []
    compile_all([Task("prompts", "dies")], said.append)
    assert said == ["a process that compiled kernels ended early (out of memory?)"]


@dataclass(frozen=True)
class OfKernel:
    """Stands for a kernel, and compiles by adding its name to a file."""

    name: str
    log: Path

    def compile(self) -> None:
        with self.log.open("a") as file:
            file.write(f"{self.name}\n")


@dataclass(frozen=True)
class Finding:
    """Stands for a rehearsal that ends early after its last kernel."""

    names: str
    log: Path
    name: str = "prompts"
    n_bytes: int = 0

    def find_kernels(self, find: Callable[[OfKernel], None]) -> None:
        for name in self.names:
            find(OfKernel(name, self.log))
        raise ValueError("numbers without a meaning")


@pytest.mark.parametrize("n_workers", [1, 3])
def test_each_kernel_that_is_found_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_workers: int
) -> None:
    monkeypatch.setattr(compiling.machine, "physical_cores", lambda: n_workers)
    monkeypatch.setattr(compiling, "available_bytes", lambda: 10 << 30)
    said: list[str] = []
    compile_missing(
        [Finding("abc", tmp_path / "log"), Finding("de", tmp_path / "log")], said.append
    )
    assert sorted((tmp_path / "log").read_text().split()) == list("abcde")
    assert [line.partition(" in ")[0] for line in said] == ["compiled 0 functions"]


class Hanging(Finding):
    """Stands for a rehearsal that does not end."""

    def find_kernels(self, find: Callable[[OfKernel], None]) -> None:
        find(OfKernel("a", self.log))
        time.sleep(3600)


class Dying(Finding):
    """Stands for a rehearsal that ends its process."""

    def find_kernels(self, find: Callable[[OfKernel], None]) -> None:
        os._exit(3)


@pytest.mark.parametrize(
    ("task", "line"),
    [
        (Hanging, "looking for kernels stopped after 1 s without a new one"),
        (Dying, "the process that looked for kernels ended early"),
    ],
)
def test_looking_for_kernels_ends_in_any_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: type[Finding], line: str
) -> None:
    """The process may take long to start, and is given up soon after its first kernel."""
    find_all = compiling._find_all

    def hurried(tasks: Any, found: Any) -> str:
        put = found.put

        def put_first(kernel: Any) -> None:
            put(kernel)
            monkeypatch.setattr(compiling, "FINDING_SECONDS", 1.0)

        monkeypatch.setattr(found, "put", put_first)
        return find_all(tasks, found)

    monkeypatch.setattr(compiling, "_find_all", hurried)
    said: list[str] = []
    compile_missing([task("", tmp_path / "log")], said.append)
    assert [one.partition(" in ")[0] for one in said] == [line, "compiled 0 functions"]
    assert task is Dying or (tmp_path / "log").read_text() == "a\n"


SLEEPS = """
import time
from kvarn.commands.terminal.compiling import compile_all

class Sleep:
    name, n_bytes = "sleep", 0

    def __call__(self):
        print("sleeping", flush=True)
        time.sleep(3600)

if __name__ == "__main__":
    compile_all([Sleep()], print)
"""


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    """Which had no time to end them, as when it is killed."""
    script = tmp_path / "sleeps.py"
    script.write_text(SLEEPS)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"sleeping\n"
        started.kill()
        started.communicate(timeout=60)  # until nobody can write to the pipe any more


def test_an_error_of_a_task_is_its_own() -> None:
    with pytest.raises(KvarnError, match="the model is damaged"):
        compile_all([Task("prompts", "fails")], print)


def test_memory_bounds_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.machine, "physical_cores", lambda: 8)
    monkeypatch.setattr(compiling, "available_bytes", lambda: 10 << 30)
    tasks = [Task(f"{i}", n_bytes=3 << 30) for i in range(8)]
    assert compiling._workers(tasks) == 2
    monkeypatch.setattr(compiling, "available_bytes", lambda: 1 << 20)
    assert compiling._workers(tasks) == 1


def test_the_first_missing_kernel_compiles_all(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    ran: list[str] = []
    monkeypatch.setattr(compiling, "say", said.append)
    monkeypatch.setattr(compiling, "compile_missing", lambda tasks, say: ran.extend(tasks))
    listener = AheadCompiler(["prompts"])  # type: ignore[list-item]
    for kernel in ("a", "b", "c"):
        listener(kernel, None)
        listener(kernel, 0.5)
    assert ran == ["prompts"]
    assert said == [
        "compiling kernels, on first use; `kvarn build` does it ahead",
        "compiling b and other missing kernels …",
    ]


class Rehearsed:
    """Stands for a rehearsal that may have run before."""

    name = "prompts"

    def __init__(self, ran: list[object], is_compiled: bool, fails: bool = False) -> None:
        self._ran, self._is_compiled, self._fails = ran, is_compiled, fails

    def is_compiled(self, model: object) -> bool:
        assert model == "model"
        return self._is_compiled

    def __call__(self, model: object) -> None:
        assert model == "model"
        self._ran.append(self)
        if self._fails:
            raise KvarnError("no memory")


def test_what_ran_once_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[object] = []
    tasks = [Rehearsed(ran, is_compiled) for is_compiled in (True, False, True, False)]
    AheadCompiler(tasks).begin("model")  # type: ignore[arg-type]
    assert ran == [tasks[1], tasks[3]]
    assert capsys.readouterr().err == ""


def test_what_cannot_be_rehearsed_is_told_and_stops_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[object] = []
    tasks = [Rehearsed(ran, is_compiled=False, fails=fails) for fails in (True, False)]
    AheadCompiler(tasks).begin("model")  # type: ignore[arg-type]
    assert ran == tasks
    assert capsys.readouterr().err == "kvarn: cannot compile ahead for prompts: no memory\n"


def test_rehearsals_are_those_of_the_choices() -> None:
    path = Path("model.gguf")
    names = [one.name for one in rehearsals(path, ("f16", "f16"), [Full()], [KeepAll()])]
    assert names == ["prompts, f16", "generation, f16", "short prompts and drafts, f16"]
    several = [TopK(budget="1%"), TopK(budget="2%"), TopK(tail="means"), Hash()]
    names = [one.name for one in rehearsals(path, ("q8_0", "q4_0"), several, [HashEvict()])]
    assert names == [
        *("topk, q8_0/q4_0", "topk tail=means, q8_0/q4_0", "hash, q8_0/q4_0"),
        *("keep hashevict, q8_0/q4_0", "topk over slots, q8_0/q4_0", "hash over slots, q8_0/q4_0"),
        *("prompts, q8_0/q4_0", "generation, q8_0/q4_0", "short prompts and drafts, q8_0/q4_0"),
    ]


def _told_meanwhile(capsys: pytest.CaptureFixture[str]) -> str:
    """What `Elapsed` writes while numbers rise, each of which it is given time to tell."""
    n, told = 0, ""
    with progress.Elapsed(lambda: f"compiling kernels: {n} done") as shown:
        for n in range(3):
            deadline = time.monotonic() + 60
            while f"{n} done" not in told and time.monotonic() < deadline:
                time.sleep(0.01)
                told += capsys.readouterr().err
            assert f"kvarn: compiling kernels: {n} done, 0 s" in told
            shown.clear()
    return told + capsys.readouterr().err


def test_what_takes_long_is_told_with_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that is rewritten on a terminal, elsewhere in a line now and then."""
    monkeypatch.setattr(progress, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: 1.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    assert _told_meanwhile(capsys).endswith(" done, 0 s\n")
    monkeypatch.setattr(progress, "LINE_SECONDS", 1.0)
    with progress.Elapsed(lambda: "compiling kernels"):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    told = _told_meanwhile(capsys)
    assert "\n" not in told and told.split("\r")[-1].strip() == ""


def test_what_a_request_chooses_by_is_known_before_its_context_is_opened() -> None:
    """Contexts that choose launch kernels as they are opened."""
    work = Workload.of(ContextRequest.of({"method": "topk", "keep": "streaming"}))
    assert ([one.name for one in work.attends], [one.name for one in work.keeps]) == (
        ["topk"],
        ["streaming"],
    )
