"""Calls the tokenizers library in a separate process, which hostile input may crash."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....system.text import one_line
from ...errors import ConvertError
from .pretokenizers import CHECK_TEXT
from .rules import PROBES

_SECONDS = 30
# Beside the process itself, which has some 100 MB; a vocabulary of 250,000 tokens takes twelve
# times the bytes of its file.
_BYTES = 512 << 20
_BYTES_PER_BYTE = 24


@dataclass(frozen=True)
class AddedToken:
    """A token beside the vocabulary proper; `written`: as it stands in a text."""

    text: str
    special: bool
    written: str


@dataclass(frozen=True)
class LibraryTokenizer:
    """The library's reading of a tokenizer's files."""

    vocab: dict[str, int]
    """All tokens, the added ones among them."""
    added: dict[int, AddedToken]
    check_ids: list[list[int]]
    """Ids of `CHECK_TEXT`, with the special tokens that are put around texts, and without."""
    cuts: list[list[tuple[int, int]]]
    """First and stop of each word of each of `PROBES`."""


def read(
    source: str, request: dict[str, Any], n_bytes: int, added: Sequence[tuple[str, bool]]
) -> LibraryTokenizer:
    """The tokenizer of a request, see `worker`; `ConvertError` naming its source on failure.

    n_bytes: of the files; the process may use a multiple of them. added: texts of tokens to add,
    and whether they are special.
    """
    request = {
        **request,
        "added": list(added),
        "check": CHECK_TEXT,
        "probes": PROBES,
        "max_bytes": _BYTES + _BYTES_PER_BYTE * n_bytes,
        "max_seconds": _SECONDS,
    }
    # By its path: nothing of kvarn's is imported there, which would take longer than the answer.
    worker = [sys.executable, str(Path(__file__).with_name("worker.py"))]
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    try:
        done = subprocess.run(
            worker,
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": path, "PYTHONSAFEPATH": "1", **_kept_variables()},
            timeout=2 * _SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _died(source, f"it took more than {_SECONDS} s") from None
    if done.returncode:
        slow = done.returncode == -getattr(signal, "SIGXCPU", signal.SIGKILL)
        raise _died(source, f"it took more than {_SECONDS} s" if slow else "it broke down")
    answer = json.loads(done.stdout)
    if "error" in answer:
        raise ConvertError(f"{source}: {one_line(answer['error'], 200)}")
    return LibraryTokenizer(
        answer["vocab"],
        {token: AddedToken(*entry) for token, *entry in answer["added"]},
        answer["ids"],
        [[(first, stop) for first, stop in cuts] for cuts in answer["cuts"]],
    )


def _kept_variables() -> dict[str, str]:
    """The variables that the process needs: where libraries are. No token, no secret."""
    names = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {name: os.environ[name] for name in names if name in os.environ}


def _died(source: str, reason: str) -> ConvertError:
    return ConvertError(
        f"{source}: the tokenizers library could not read it ({reason}): the file is damaged, or "
        "made to harm"
    )
