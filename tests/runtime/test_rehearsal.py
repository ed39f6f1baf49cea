"""Rehearsals leave all that a feature needs: the next process compiles nothing."""

import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kvarn
from kvarn.jit import kernel_cache, threads
from kvarn.ops.attention.layout import KV_TYPES
from kvarn.runtime.attend import Hash, MagicPig, TopK
from kvarn.runtime.attend.encoders.sidecar import sidecar_path
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.model import Model
from kvarn.runtime.prefill import SparsePrefill
from kvarn.runtime.rehearsal import (
    Rehearsal,
    all_rehearsals,
    generate,
    read_few,
    read_prompt,
    rehearsals,
)
from kvarn.system.trust import open_folder
from lab.peers.model import Shape, write_model

from ..models import tiny_cases, tiny_models

PROGRAM = """
import pickle, sys
tasks = pickle.load(sys.stdin.buffer)
if sys.argv[1:] == ["without Numba"]:
    from kvarn.jit.kernel_cache import folders

    folders.key()  # which looks for Numba's version
    sys.modules["numba"] = None  # importing it fails
for task in tasks:
    task()
"""


def run_twice(tasks: list[Rehearsal]) -> None:
    """In a process that may compile, and in one that cannot: what is missing there is told."""
    if not threads.uses_gnu():
        pytest.skip("Numba's threads run the kernels: there is no OpenMP of GNU's")
    for words in ([], ["without Numba"]):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            input=pickle.dumps(tasks),
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr.decode()) == (0, "")


def test_the_next_process_needs_no_numba() -> None:
    """Whatever the method: all kernels of contexts but those of other models and types of K and V,
    some of which call the C library, or have slices assigned."""
    run_twice(all_rehearsals(default_model_path(), [("f16", "f16")]))


@pytest.mark.parametrize("name", ["qwen35", "lfm2", "nemotron_h_moe"])
def test_hybrids_need_no_numba_in_the_next_process(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hybrid.gguf"
    tiny_models.write(path, next(case for case in tiny_cases.CASES if case.name == name), 1)
    tasks = all_rehearsals(path, [("f16", "f16")])
    run_twice([task for task in tasks if task.run in (generate, read_prompt)])


def test_methods_that_evict_are_not_rehearsed_for_what_they_refuse(tmp_path: Path) -> None:
    path = tmp_path / "gemma4.gguf"
    tiny_models.write(path, next(case for case in tiny_cases.CASES if case.name == "gemma4"), 1)
    tasks = all_rehearsals(path, [("f16", "f16")])
    assert not [task.name for task in tasks if task.keep.evicts(1100)]
    assert {type(task.attend) for task in tasks} >= {TopK, Hash, MagicPig}


def test_nor_do_experts(tmp_path: Path) -> None:
    path = tmp_path / "experts.gguf"
    shape = Shape(2, 256, 4, 2, 64, n_ff=256, n_vocab=512, n_experts=5, n_used=2)
    write_model(path, "q4_k_m", shape)
    run_twice(rehearsals(path, ("f16", "f16")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KV_TYPES)
def test_no_feature_needs_numba_in_the_next_process(kind: str, tiny_path: Path) -> None:
    for path in (default_model_path(), tiny_path):
        run_twice(all_rehearsals(path, [(kind, kind)]))


def test_what_was_rehearsed_is_known_by_its_kernels(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Rehearsal("generation", tiny.path, generate)
    task(tiny)  # which may compile, and keeps more then
    kept: dict[str, bytes] = {}
    with monkeypatch.context() as patched:
        patched.setattr(kernel_cache, "keep", kept.__setitem__)
        task(tiny)
    ((name, payload),) = kept.items()
    assert name == task._record(tiny)
    names = payload.decode().splitlines()
    assert any(name.startswith("kvarn_launch-") for name in names) and len(names) > 5
    for gone in (*names, None):
        monkeypatch.setattr(kernel_cache, "find", lambda name, parse: parse(payload))
        monkeypatch.setattr(kernel_cache, "has", lambda asked, gone=gone: gone not in asked)
        assert task.is_compiled(tiny) == (gone is None)
    monkeypatch.setattr(kernel_cache, "find", lambda name, parse: None)
    assert not task.is_compiled(tiny)


def test_what_kernels_depend_on_has_another_record(tiny: Model, tmp_path: Path) -> None:
    path = tmp_path / "copy.gguf"
    shutil.copy(tiny.path, path)
    task, copy = Rehearsal("generation", path, generate), kvarn.load(path)
    same = task._record(tiny)
    assert task._record(copy) == same
    others = [
        replace(task, kv=("q8_0", "f16"))._record(copy),
        replace(task, run=read_few)._record(copy),
        replace(task, attend=TopK().shortened())._record(copy),
        task._record(kvarn.load()),
    ]
    sidecar_path(path).write_bytes(b"learned since")
    others.append(task._record(copy))
    assert len({same, *others}) == 6


def test_files_are_looked_for_and_not_read(tmp_path: Path) -> None:
    with open_folder(tmp_path / "kernels", make=True) as folder:
        folder.write("there", b"")
        assert folder.has("there") and not folder.has("gone")


def test_a_rehearsal_shows_no_notices(tiny_path: Path) -> None:
    shown: list[str] = []
    model = kvarn.load(tiny_path, notice=shown.append)

    def tell(context: kvarn.Context) -> None:
        context.model.tell("of a context that nobody asked for")

    Rehearsal("notices", tiny_path, tell)(model)
    assert shown == []
    model.tell("of a later context")
    assert shown == ["of a later context"]


FINDS = """
import pickle, sys, kvarn.jit.kernel_cache as cache
names = set()
for task in pickle.load(sys.stdin.buffer):
    if sys.argv[1] == "finds":
        task.find_kernels(lambda kernel: names.add(pickle.loads(pickle.dumps(kernel))._name))
    else:
        task()
names |= {name for name in cache.Counts.names if name.endswith(".code")}
print(cache.Counts.compiled, *sorted(names))
"""


def test_all_kernels_are_found_without_running_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing in the cache, and none compiled: those that the rehearsals use."""
    tasks = rehearsals(
        default_model_path(), ("f16", "f16"), [TopK(), Hash()], prefills=[SparsePrefill()]
    )

    def run(how: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", FINDS, how],
            input=pickle.dumps(tasks),
            capture_output=True,
            check=True,
        )
        return done.stdout.decode().split()

    _, *used = run("runs")
    monkeypatch.setenv("KVARN_CACHE", str(tmp_path))
    assert run("finds") == ["0", *used]
