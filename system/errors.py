"""The base class of errors that a user can cause, and the message for any other error."""

import copyreg
import os
from typing import Any

from .spelling import spelt


class KvarnError(Exception):
    """One line: the task, what kvarn found and expected, and what to do.

    It can be pickled and copied, whatever its class takes to be made: a pool of processes stops
    for good at an error that cannot.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class WrongUsage(KvarnError):
    """What was asked for cannot be, whatever files and memory hold: a value that an option cannot
    have, an option or a word that is missing, has no effect, or excludes another."""


class OutOfDeviceMemory(KvarnError):
    """A device other than the CPU has too little memory for a computation, which did not run.
    Earlier contents of its memory are intact."""


NO_SUCH_FILE = "no such file or folder"


def no_such_file(name: object, advice: str = "") -> str:
    """What is said of a file that is not there, whatever it was to be."""
    return f"{name}: {NO_SUCH_FILE}" + (f"; {advice}" if advice else "")


def message_of(error: BaseException) -> str:
    """The message for a user, of any error; it may have more than one line."""
    if isinstance(error, KvarnError):
        return str(error)
    if isinstance(error, FileNotFoundError) and error.filename:
        return no_such_file(error.filename)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    if isinstance(error, MemoryError):
        return f"out of memory: use a smaller model, {spelt('ctx')} or {spelt('kv_type')}"
    return (
        f"unexpected {type(error).__name__}: {str(error) or 'it says no more'} "
        "(a fault of kvarn: KVARN_DEBUG=1 shows where)"
    )


def traceback_of(error: BaseException) -> str:
    """Where an error was raised, for those who set KVARN_DEBUG; "" for all others."""
    if os.environ.get("KVARN_DEBUG", "0") in ("", "0"):
        return ""
    import traceback

    return "".join(traceback.format_exception(error))
