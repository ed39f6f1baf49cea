"""One thread computes, whoever asks."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvarn.runtime.engine import on_engine

from ..programs import printed


def test_every_caller_computes_on_the_same_thread() -> None:
    with ThreadPoolExecutor(4) as callers:
        futures = [callers.submit(on_engine, threading.get_ident) for _ in range(16)]
        threads = {future.result() for future in futures}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_a_call_from_the_engine_thread_runs_at_once() -> None:
    assert on_engine(lambda: on_engine(threading.get_ident) == threading.get_ident())


def test_an_error_reaches_the_caller_and_the_engine_goes_on() -> None:
    with pytest.raises(ZeroDivisionError):
        on_engine(lambda: 1 / 0)
    assert on_engine(max, 1, 2) == 2


def interrupt() -> None:
    """Ctrl-C, from any thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_what_runs() -> None:
    done = []

    def interrupted() -> None:
        interrupt()
        time.sleep(0.1)
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        on_engine(interrupted)
    assert done == [1]


def test_an_interrupt_takes_back_what_has_not_begun() -> None:
    held, done = threading.Event(), []
    with ThreadPoolExecutor(1) as other:
        running = threading.Event()
        other.submit(on_engine, lambda: (running.set(), held.wait()))
        running.wait()
        threading.Timer(0.05, interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            on_engine(done.append, 1)
        held.set()
    on_engine(int)
    assert done == []


def test_an_interrupt_while_it_starts_leaves_nothing_behind() -> None:
    code = """
import os, signal, threading
from kvarn.runtime.engine import on_engine
start = threading.Thread.start
def interrupted(self):
    start(self)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread.start = interrupted
try:
    on_engine(int)
except KeyboardInterrupt:
    print("interrupted")
"""
    assert printed(code, timeout=30) == "interrupted\n"
