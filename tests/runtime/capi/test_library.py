"""libkvarn as C programs see it: its header, its start and end, threads, memory, cancelling."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarn import cli
from kvarn.runtime.capi import build as building
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.loading.load import load
from kvarn.runtime.packs.pack import build_pack

from .conftest import HERE, STRICT, Compile, Run

Probe = Callable[..., dict[str, str]]
EXAMPLES = Path(building.__file__).parent / "examples"
PROMPTS = (
    "The old mill stood by the river, and",
    "It was a bright cold morning, and",
    "Once upon a time",
    "She opened the letter and",
    "In the year 1847, the harbour",
)


# The header.


@pytest.mark.parametrize("how", [("c", "-std=c99"), ("c++", "-std=c++17")], ids=["c99", "c++17"])
def test_the_header_compiles_alone(how: tuple[str, str], compiler: str, tmp_path: Path) -> None:
    language, standard = how
    if language == "c++" and shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    source = tmp_path / "empty"
    source.write_text("#include <kvarn.h>\nint main(void) { return kvarn_start(0) > 0; }\n")
    include = Path(building.__file__).parent
    subprocess.run(
        [compiler, "-x", language, standard, *STRICT, "-fsyntax-only", f"-I{include}", str(source)],
        check=True,
    )


def test_exported_symbols_are_those_of_the_header(built: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    names = ["nm", "-D", "--defined-only", str(built / "lib/libkvarn.so")]
    listed = subprocess.run(names, capture_output=True, text=True, check=True).stdout
    header = re.sub(r"/\*.*?\*/", "", (built / "include/kvarn.h").read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"^[a-z][\w ]*?[ *](kvarn_\w+)\(", header, re.MULTILINE))
    assert {line.split()[-1] for line in listed.splitlines()} == declared - {"kvarn_start"}
    assert len(declared) == 25


# The traps of a Python inside a program.


def test_calls_out_of_order_are_refused(probe: Probe, tmp_path: Path) -> None:
    found = probe("order", tmp_path)
    for name in ("early", "early_stop", "late", "late_free", "late_start"):
        assert found[name].startswith("-4 "), name
    assert "before kvarn_start" in found["early"] and "before kvarn_start" in found["early_model"]
    assert "kvarn.h of API 2, and the library has API 1" in found["api"]
    assert found["no_home"].startswith("-1 starting kvarn: /nowhere has no lib/python3")
    assert found["start"].split() == found["again"].split() == found["stop"].split() == ["1"]
    assert found["other"].startswith("-5 ") and str(tmp_path) in found["other"]


def test_a_python_in_the_path_is_not_asked(run: Run, tmp_path: Path) -> None:
    for name in ("python", "python3", "python3.11"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/asked\n")
        (tmp_path / name).chmod(0o755)
    done = run(EXAMPLES / "hello.c", PATH=str(tmp_path), PYTHONHOME="/nowhere", PYTHONPATH="/no")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "\n[32 tokens]\n"
    assert not (tmp_path / "asked").exists()


def test_the_home_in_the_environment_counts(run: Run, tmp_path: Path) -> None:
    done = run(EXAMPLES / "hello.c", KVARN_PYTHON_HOME=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"hello: starting kvarn: {tmp_path} has no lib/")
    assert done.stderr.count("\n") == 1


def test_a_home_without_packages_is_told(run: Run, tmp_path: Path, built: Path) -> None:
    """One that has a standard library, as another user's Python does; the packages stay."""
    (tmp_path / "bin").symlink_to(Path(sys.base_prefix, "bin"))
    (tmp_path / "lib").symlink_to(Path(sys.base_prefix, "lib"))
    done = run(EXAMPLES / "hello.c", KVARN_PYTHON_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_a_bare_environment_and_a_path_with_an_accent_do(
    compiled: Compile, environment: dict[str, str], tmp_path: Path
) -> None:
    model = tmp_path / "modèle è.gguf"
    shutil.copy(default_model_path(), model)
    bare = {name: environment[name] for name in environment if name.startswith("KVARN")}
    done = subprocess.run(
        [str(compiled(EXAMPLES / "hello.c")), str(model), "A café"], env={**bare, "LC_ALL": "C"},
        capture_output=True, text=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_host_may_open_the_library_with_local_symbols_from_a_moved_folder(
    built: Path, run: Run, tmp_path: Path
) -> None:
    moved = shutil.copytree(built, tmp_path / "moved")
    done = run(HERE / "opened.c", moved / "lib/libkvarn.so", "")
    assert done.returncode != 0 and "no such file" in done.stdout  # "" is no model
    done = run(HERE / "opened.c", moved / "lib/libkvarn.so")
    assert done.returncode == 0, done.stdout
    assert len(done.stdout) > 3


def test_another_python_in_the_process_is_refused(
    built: Path, compiler: str, environment: dict[str, str], tmp_path: Path
) -> None:
    program, lib = tmp_path / "program", built / "lib"
    command = [
        *(compiler, "-rdynamic", str(HERE / "other_python.c"), "-o", str(program)),
        *(f"-I{built / 'include'}", f"-L{lib}", "-lkvarn", f"-Wl,-rpath,{lib}"),
    ]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [str(program)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("start -1 starting kvarn: this process runs Python 3.99.1")


@pytest.mark.parametrize("n", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_main_may_return_while_threads_generate(n: int, run: Run) -> None:
    for _ in range(n):
        done = run(HERE / "probe.c", "leave", default_model_path())
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_callbacks_may_call(probe: Probe) -> None:
    found = probe("inside", default_model_path())
    for name in ("generate", "stop", "info", "second"):
        assert found[name].startswith("-2 "), name
    assert int(found["tokenize"]) > 0
    assert found["cancel"].strip() == "1"
    for name in ("stopped", "cancelled", "other"):
        assert found[name].startswith("-3 cancelled: "), name
    assert int(found["after"]) > 0


# Results.


@pytest.mark.parametrize("n", [1, pytest.param(len(PROMPTS), marks=pytest.mark.slow)])
def test_greedy_texts_are_those_of_the_command_line(
    n: int, host: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, pack = load(), tmp_path / "pack"
    ids = model.tokenizer.encode("The miller of Alkmaar kept white geese. " * 9, bos=True)
    build_pack(model, pack, ids, 4096)
    found = host("host.py", "answers", pack, *PROMPTS[:n])
    expected = []
    for options in (["--ctx", "512"], ["--pack", str(pack)]):
        for prompt in PROMPTS[:n]:
            capsys.readouterr()
            assert cli.main(["run", "-p", prompt, "-n", "24", "--temp", "0", *options]) == 0
            expected.append(capsys.readouterr().out)
    assert found == expected


def test_drafts_are_those_of_the_command_line(host: Callable[..., Any]) -> None:
    """By repetitions and by a model's file, which stays loaded; none of them changes the text."""
    small = Path(__file__).parents[3] / "lab" / "mini" / "kvarn-mini-llama.gguf"
    found = host("host.py", "drafts", small)
    assert len({text for text, _ in found}) == 1
    seconds = [n for _, n in found]
    assert seconds[0] == 0 and seconds == sorted(set(seconds))  # each one guessed


def test_buffers_hold_what_python_gives(host: Callable[..., Any]) -> None:
    text, model = "The old mill, 1847 — è", load()
    ids = model.tokenizer.encode(text, bos=True)
    found = host("host.py", "sizes", text)
    assert found["ids"] == [*ids, -1]
    assert found["needed"] == found["short"] == len(ids) + 1
    assert found["untouched"]
    assert found["back"] == model.tokenizer.decode(ids)
    assert found["n_text"] == len(model.tokenizer.decode(ids).encode()) + 1
    assert found["empty"] == 1
    (line,) = found["lines"]
    assert line.startswith("nothing is evicted: ")
    logits = model.context(512).prefill(ids)
    np.testing.assert_array_equal(np.array(found["logits"], np.float32), logits)


def test_control_tokens_in_a_text_are_text_unless_their_ids_are_read(
    host: Callable[..., Any],
) -> None:
    text, tokenizer = "<s>The old mill</s>", load().tokenizer
    found = host("host.py", "spellings", text)
    bos = [tokenizer.bos_id]
    assert found["plain"] == [*bos, *tokenizer.encode(text)]
    assert found["read"] == len(found["plain"])
    assert found["special"] == [*bos, *tokenizer.encode("The old mill"), tokenizer.eos_id]


def test_a_chat_reads_only_what_is_new_after_a_text(host: Callable[..., Any]) -> None:
    found = host("host.py", "turns")
    first, second = found["reads"]
    text, *held = found["held"]
    assert found["made"] == [8, 8]
    assert first == held[0] - 7  # the last token of an answer is not read
    assert second - first < held[1] - text - 7  # of the second turn, some stood there
    assert held[0] < held[1]


def test_examples_run(run: Run, tmp_path: Path) -> None:
    document = tmp_path / "document.txt"
    document.write_text("The miller of Alkmaar kept forty-one white geese. " * 5)
    words = ("", tmp_path / "pack", document, 'How many "geese"?', "Whose?")
    done = run(EXAMPLES / "ask.c", *words)
    assert done.returncode == 0, done.stderr
    assert "tokens" in done.stderr
    again = run(EXAMPLES / "ask.c", *words)
    assert again.returncode == 0 and "read" not in again.stderr  # the pack is complete
    assert again.stdout.count("> ") >= 2
    wrong = run(EXAMPLES / "ask.c", "/nowhere", "p", document, "Why?")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == (
        "ask: /nowhere: no such file or folder; `kvarn ls` lists the models on this machine\n"
    )


# Threads, cancelling, memory.


@pytest.mark.parametrize("n", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_threads_get_the_text_of_one_thread(n: int, probe: Probe) -> None:
    found = probe("threads", default_model_path(), n)
    assert found["wrong"] == "0" and int(found["length"]) > 10


@pytest.mark.parametrize("options", [
    '{"ctx": 4096}',
    '{"ctx": 4096, "kv_type": "q4_0"}',
    '{"ctx": 4096, "method": "topk", "budget": 64}',
    '{"ctx": 4096, "method": "hash", "budget": 64}',
    '{"ctx": 4096, "keep": "hashevict", "keep_budget": 900}',
])  # fmt: skip
def test_a_cancelled_read_leaves_whole_chunks_and_their_bits(options: str, probe: Probe) -> None:
    """Reading on gives the logits of a context that was never cancelled, bit for bit."""
    for ms in (20, 5, 1, 0):  # on a fast machine the read may have ended
        found = probe("cancel", default_model_path(), 1400, options, ms)
        assert found["equal"] == "1"
        if found["read"].startswith("-3 cancelled"):
            break
    assert found["read"].startswith("-3 cancelled")
    assert int(found["held"]) in (512, 1024)


@pytest.mark.slow
def test_memory_does_not_grow(probe: Probe) -> None:
    found = probe("memory", default_model_path(), 200, 20)
    assert int(found["contexts"]) <= 2048
    assert int(found["models"]) <= 2048


@pytest.mark.parametrize("n", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_no_arguments_do_harm(
    n: int, host: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = host("fuzz.py", n)
    assert found["failed"] >= n // 10 and found["done"] >= n // 10
    assert n < 1000 or found["growth"] <= 20_000  # KiB, in the second half
