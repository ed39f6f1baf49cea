"""The process that renders: what it gets, what it may, how it ends and is replaced."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

from kvarn.runtime.chat.sandbox import interpreter, renderer
from kvarn.runtime.chat.sandbox.errors import TemplateError
from kvarn.runtime.chat.sandbox.limits import MAX_SOURCE, Limits
from kvarn.runtime.chat.sandbox.process import Worker
from kvarn.runtime.chat.template import ChatTemplate

from ...programs import printed

USER = [{"role": "user", "content": "hi"}]
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def template(source: str = "{{ messages[0].content }}") -> ChatTemplate:
    return ChatTemplate(source, bos_token=None, eos_token=None)


def worker(of: ChatTemplate) -> Worker:
    found = of._renderer._worker
    assert found is not None
    return found


def pid(of: ChatTemplate) -> int:
    return worker(of)._process.pid


@linux
def test_the_process_gets_nothing_and_may_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    inherited = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(inherited, True)
    chat = template()
    assert chat.render(USER) == "hi"
    proc = Path(f"/proc/{pid(chat)}")
    names = {entry.partition(b"=")[0] for entry in (proc / "environ").read_bytes().split(b"\0")}
    assert names <= {b"", b"TZ", b"LD_LIBRARY_PATH", b"LC_CTYPE"}
    assert sorted(path.name for path in (proc / "fd").iterdir()) == ["0", "1", "2"]
    assert (proc / "fd" / "1").readlink() == (proc / "fd" / "2").readlink() == Path("/dev/null")
    assert (proc / "cwd").readlink() == Path("/")
    limits = (proc / "limits").read_text()
    for name, limit in (
        ("Max open files", "0"),
        ("Max file size", "0"),
        ("Max core file size", "0"),
        ("Max processes", "0"),
        ("Max address space", str(Limits().memory)),
    ):
        line = next(line for line in limits.splitlines() if line.startswith(name))
        assert line[len(name) :].split()[:2] == [limit, limit], line
    os.close(inherited)


def test_one_process_serves_until_the_template_is_gone() -> None:
    chat = template()
    chat.start()
    first = worker(chat)._process
    chat.check()
    assert chat.render(USER) == chat.render(USER) == "hi"
    with pytest.raises(TemplateError, match="rendering failed"):
        chat.render([])  # its own fault, not the process's
    assert worker(chat)._process is first
    del chat
    gc.collect()
    assert first.returncode == -signal.SIGKILL


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV])
def test_a_process_that_died_is_replaced(sent: int) -> None:
    chat = template()
    chat.check()
    os.kill(pid(chat), sent)
    worker(chat)._process.wait()
    assert chat.render(USER) == "hi"


def limited(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    monkeypatch.setattr(renderer, "Limits", lambda: Limits(**limits))


def test_time_and_memory_are_told_and_the_next_rendering_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limited(monkeypatch, render_seconds=1)
    chat = template(
        "{% for i in range(messages[0].n) %}{% set x = range(99999) | sum %}{% endfor %}"
    )
    with pytest.raises(TemplateError, match="rendering failed: took more than 1 s of CPU time"):
        chat.render([{"n": 99999}])
    assert chat.render([{"n": 1}]) == ""
    chat = template("{{ 'x'.encode().ljust(messages[0].n) | length }}")
    with pytest.raises(TemplateError, match="rendering failed: took more than 256 MB of memory"):
        chat.render([{"n": 10**10}])
    assert chat.render([{"n": 7}]) == "7"


def test_a_process_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, wall_seconds=2)
    chat = template()
    chat.check()
    stopped = worker(chat)._process
    os.kill(stopped.pid, signal.SIGSTOP)
    with pytest.raises(TemplateError, match="took more than 2 s"):
        chat.render(USER)
    assert stopped.returncode == -signal.SIGKILL
    assert chat.render(USER) == "hi"


def test_an_interrupted_rendering_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = template()
    chat.check()

    def interrupted(self: Worker) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Worker, "_answer", interrupted)
        chat.render([{"role": "user", "content": "first"}])
    assert chat.render([{"role": "user", "content": "second"}]) == "second"


def test_a_fork_starts_its_own_and_leaves_the_other_alone() -> None:
    code = """
import os, sys
from kvarn.runtime.chat.template import ChatTemplate
chat = ChatTemplate("{{ messages[0] }}", bos_token=None, eos_token=None)
chat.check()
mine = chat._renderer._worker._process
child = os.fork()
if child == 0:
    assert chat.render([{"a": 1}]) == "{'a': 1}"
    assert chat._renderer._worker._process.pid != mine.pid
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert mine.poll() is None and chat._renderer._worker._process is mine
print(chat.render([{"b": 2}]))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    assert printed(code, env=environment) == "{'b': 2}\n"


def test_messages_of_ten_megabytes_are_rendered() -> None:
    # Beyond a text of one byte a character, too: an emoji makes it four.
    for start in ("", "é", "漢", "\U0001f600"):
        content = start + "x" * (10 << 20)
        assert (
            template("{{ '<s>' + messages[0].content }}").render(
                [{"role": "user", "content": content}]
            )
            == "<s>" + content
        )


def test_values_arrive_as_they_were_given() -> None:
    given = {1: "a", None: 2**200, "x": [1.5, float("inf"), True, "\ud800 \x00é"]}
    assert template("{{ given }}").render(USER, given=given) == str(given)
    assert template("{{ given.x[3] }}").render(USER, given=given) == "\ud800 \x00é"


def test_a_source_of_another_size_is_refused() -> None:
    assert template("x" * MAX_SOURCE).render(USER) == "x" * MAX_SOURCE
    with pytest.raises(TemplateError, match="characters, expected at most"):
        template("x" * (MAX_SOURCE + 1))


def test_without_a_python_to_start_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As in a C program that has Python in it, whose own name must not be taken for Python's.
    real = sys.executable
    host = tmp_path / "host"
    host.write_text("#!/bin/sh\nexit 0\n")
    host.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(host))
    monkeypatch.setattr(sys, "_base_executable", real)
    assert template().render(USER) == "hi"
    monkeypatch.setattr(sys, "_base_executable", "")
    monkeypatch.setattr(sys, "exec_prefix", str(tmp_path))
    monkeypatch.setattr(interpreter.sysconfig, "get_config_var", lambda _: str(tmp_path))
    with pytest.raises(TemplateError, match="needs the program python3"):
        template().render(USER)


def test_another_program_in_pythons_place_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\nexit 3\n")
    other.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(other))
    with pytest.raises(TemplateError, match="its process ended with exit code 3"):
        template().render(USER)
