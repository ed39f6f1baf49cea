"""What became of each text of a folder of packs.

FOLDER/
  NAME/          a pack
  .kvarn/NAME    a note: one line of JSON, written in place by the process that holds its lock

A pack tells its tokens and its model. Its note adds what the pack cannot tell: where the text came
from, why there is no pack, how many processes died of it. So `texts_in` computes the list of a
folder from both, and no file of the list has to be kept right by several machines. Locks (flock)
end with their processes.

    {"text": "papers/a.pdf", "digest": "…", "n_failed": 0, "n_died": 1, "n_tokens": 512,
     "reason": ""}
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from ...system.errors import KvarnError
from ...system.files import open_regular
from ..documents.kinds import Notice
from ..home import make_folder, mode_in
from ..store.disk.errors import PackBusy, PackError, opening
from ..store.disk.format.manifest import NAME as MANIFEST
from ..store.disk.format.parts_text import first_token
from ..store.disk.info import pack_head

NOTES = ".kvarn"
"""The folder of the notes, in that of the packs."""
MOST_DEATHS = 4
"""Processes that may die of a text without getting further before it is given up."""
_MOST_BYTES = 1 << 16
_MOST_REASON = 2000

State = Literal["read", "being read", "unfinished", "failed", "given up"]


@dataclass(frozen=True)
class TextNote:
    """What is known of a text besides its pack.

    text: the file it came from, "" for others. digest: of the text as it was read (XXH3, 128 bits).
    n_failed: attempts since the last that succeeded, or got further, which ended with an error;
    n_died: those whose process ended without a word. n_tokens: of the pack, when the last one
    began. reason: the error that ended it, "" if none did.
    """

    text: str = ""
    digest: str = ""
    n_failed: int = 0
    n_died: int = 0
    n_tokens: int = 0
    reason: str = ""


@dataclass(frozen=True)
class TextState(TextNote):
    """A text of a folder of packs. n_tokens: those its pack has, of `goal`; of a block of a text,
    its own. n_blocks, n_blocks_read: as `PackHead` has them. model: the pack's."""

    name: str = ""
    state: State = "unfinished"
    goal: int = 0
    n_blocks: int = 0
    n_blocks_read: int = 0
    model: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        first = ("name", "state", "text", "digest", "n_tokens", "goal", "model")
        data = asdict(self)
        return {key: data[key] for key in first} | data


class Attempt:
    """One attempt to read a text; `digest` is set when the text is known. is_elsewhere: another
    pack has the text, so that no note is kept."""

    def __init__(self, digest: str) -> None:
        self.digest, self.is_elsewhere = digest, False


def digest_of(text: str | Sequence[int]) -> str:
    """Of a text, or of the ids of one."""
    if isinstance(text, str):
        return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))
    return xxhash.xxh3_128_hexdigest(np.asarray(text, "<u4").tobytes())


@contextmanager
def attempt(pack: Path, text: str) -> Iterator[Attempt]:
    """The attempt to read a text into a pack, of which its note tells. text: the file's name.

    Raises `PackBusy` while another process or thread is at it, `KvarnError` if `MOST_DEATHS`
    processes have died of it. An attempt that ends with a `KvarnError` has failed; with `PackBusy`
    or an interrupt, it was none; with any other exception the process may have died of the text.
    """
    with opening(pack):
        fd = _lock_note(pack)
    try:
        n_tokens, before = _n_tokens(pack), _parsed(os.pread(fd, _MOST_BYTES, 0))
        if before.n_tokens != n_tokens:  # the last attempt got further
            before = replace(before, n_failed=0, n_died=0)
        if before.n_died >= MOST_DEATHS:
            raise KvarnError(
                f"{before.text or pack} was given up: {before.n_died} processes died of it without "
                f"getting further; remove {note_path(pack)} to try again"
            )
        begun = replace(before, text=text, n_tokens=n_tokens, reason="")
        work = Attempt(before.digest)
        _write(pack, fd, replace(begun, n_died=begun.n_died + 1))
        try:
            yield work
        except (PackBusy, KeyboardInterrupt, GeneratorExit):
            _write(pack, fd, replace(begun, reason=before.reason))
            raise
        except KvarnError as error:
            reason = str(error)[:_MOST_REASON]
            failed = replace(begun, n_failed=begun.n_failed + 1, reason=reason)
            with suppress(PackError):  # on a full disk, the first error tells it best
                _write(pack, fd, replace(failed, digest=work.digest))
            raise
        if work.is_elsewhere:
            remove_note(pack)
        else:
            _write(pack, fd, TextNote(text, work.digest, n_tokens=_n_tokens(pack)))
    finally:
        os.close(fd)


def note_path(pack: Path) -> Path:
    """The note of the text of a pack."""
    return pack.parent / NOTES / pack.name


def packs_by_digest(folder: Path) -> dict[str, list[Path]]:
    """The packs of a folder whose notes have the digest of a text, by that."""
    packs: dict[str, list[Path]] = {}
    notes = folder / NOTES
    for name in sorted(path.name for path in notes.iterdir()) if notes.is_dir() else ():
        packs.setdefault(_look_up(folder / name)[0].digest, []).append(folder / name)
    packs.pop("", None)
    return packs


def remove_note(pack: Path) -> None:
    """Remove the note of a pack that is no more. Where that fails, the note stays."""
    with suppress(OSError):
        note_path(pack).unlink()


def packs_in(folder: Path) -> list[Path]:
    """The packs in a folder, by name. Raises `KvarnError` where it is none, or has none."""
    if not folder.is_dir():
        raise KvarnError(f"{folder} is no folder: expected one with packs in it")
    if (folder / MANIFEST).exists():
        raise KvarnError(f"{folder} is a pack: expected a folder with packs in it")
    packs = sorted(path for path in folder.iterdir() if (path / MANIFEST).is_file())
    if not packs:
        raise KvarnError(
            f"there are no packs in {folder}: `kvarn pack build --each -f FILE … -o {folder}/` "
            "makes them"
        )
    return packs


def finished_packs(folder: Path, notice: Notice = lambda line: None) -> list[Path]:
    """The packs in a folder that hold all of their texts, by name. notice: called with a line about
    each one that cannot be opened, and one about those that are not finished.

    Raises `KvarnError` where there are none.
    """
    packs, whole, n_unfinished = packs_in(folder), list[Path](), 0
    for pack in packs:
        try:
            head = pack_head(pack)
        except PackError as error:
            notice(f"{error}; it is not asked")
            continue
        if head.n_tokens and head.complete:
            whole.append(pack)
        else:
            n_unfinished += 1
    if not whole:
        raise KvarnError(f"no pack in {folder} is finished: `kvarn pack ls {folder}` lists them")
    if n_unfinished:
        notice(f"{folder}: {n_unfinished} of {len(packs)} packs are not finished and are not asked")
    return whole


def texts_in(folder: Path) -> list[TextState]:
    """What became of the texts of a folder, by name. Raises `KvarnError` where it is no folder of
    packs or of texts that failed."""
    notes = folder / NOTES
    with opening(folder):
        named = {path.name for path in notes.iterdir()} if notes.is_dir() else set()
    packs = set() if named and not any(folder.glob(f"*/{MANIFEST}")) else set(packs_in(folder))
    return [_state(folder / name) for name in sorted(named | {pack.name for pack in packs})]


def _state(pack: Path) -> TextState:
    note, busy = _look_up(pack)
    goal, model, complete, reason = 0, "", False, note.reason
    n_tokens = first = n_blocks = n_blocks_read = 0
    try:
        if (pack / MANIFEST).exists():
            head, first = pack_head(pack), first_token(pack)
            n_tokens, goal, model = head.n_tokens, head.goal, head.model
            n_blocks, n_blocks_read = head.n_blocks, head.n_blocks_read
            complete = head.complete and n_tokens > 0
    except PackError as error:
        reason = str(error)
    n_died = note.n_died if note.n_tokens == n_tokens else 0
    state: State = "read" if complete else "unfinished"
    if busy:
        state = "being read"
    elif reason:
        state = "failed"
    elif n_died >= MOST_DEATHS:
        state = "given up"
    n_tokens = max(n_tokens - first, 0)
    facts = {**asdict(note), "n_tokens": n_tokens, "n_died": n_died, "reason": reason}
    facts |= {"goal": max(goal - first, 0), "n_blocks": n_blocks, "n_blocks_read": n_blocks_read}
    return TextState(**facts, name=pack.name, state=state, model=model)


def _look_up(pack: Path) -> tuple[TextNote, bool]:
    """The note of a pack's text, and whether a process is reading the text."""
    with opening(pack):
        try:
            fd = open_regular(note_path(pack))
        except FileNotFoundError:
            return TextNote(), False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            busy = False
        except BlockingIOError:
            busy = True
        finally:
            data = os.pread(fd, _MOST_BYTES, 0)
            os.close(fd)
    note = _parsed(data)
    # The attempt that is under way has not died.
    return (replace(note, n_died=max(note.n_died - 1, 0)) if busy else note), busy


def _lock_note(pack: Path) -> int:
    """The note's descriptor, with the lock; `PackBusy` if another process or thread has that."""
    path = note_path(pack)
    make_folder(path.parent)
    fd = open_regular(path, writable=True, mode=mode_in(path.parent))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise PackBusy(pack) from error
    if not os.fstat(fd).st_nlink:  # removed meanwhile: another process may have made it anew
        os.close(fd)
        raise PackBusy(pack)
    return fd


def _n_tokens(pack: Path) -> int:
    """Those that the pack has saved; 0 without a pack, or a sound one."""
    try:
        return pack_head(pack).n_tokens
    except PackError:
        return 0


def _parsed(data: bytes) -> TextNote:
    """The note in a file; an empty one where a crash has left no whole line."""
    types = {field.name: str if field.type == "str" else int for field in fields(TextNote)}
    try:
        stored: dict[str, Any] = json.loads(data.split(b"\n", 1)[0])
        facts: dict[str, Any] = {name: types[name](value) for name, value in stored.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return TextNote()
    return TextNote(**facts)


def _write(pack: Path, fd: int, note: TextNote) -> None:
    """In place, as the file's lock is on the file. A crash may leave a part: see `_parsed`."""
    line = json.dumps(asdict(note)).encode() + b"\n"
    with opening(note_path(pack)):
        written = 0
        while written < len(line):
            written += os.pwrite(fd, line[written:], written)
        os.ftruncate(fd, len(line))
