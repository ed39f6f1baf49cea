"""One context on disk: its text, its questions, its KV caches, and all answers so far.

NAME/                  the task, the length, the number and a digest, see `Cell.key`
├─ context.txt         the context
├─ questions.json      [{"text", "reply", "answers"}, …]; written after context.txt
├─ answers.jsonl       one line for each answer, see `Answer`; locked (flock) by the process
│                      that is at work on the context
├─ pack/               the context pack, read exactly
└─ pack-MODE-DIGEST/   the context pack, read in another way, see `Arm.pack_name`; on a GPU
                       both names end in its device
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ...runtime.home import make_folder, mode_in
from ...runtime.packs.pack import remove_pack
from ...system.files import open_regular, write_file
from ...system.reading import MOST_TEXT, read_file
from ..tasks import Question, Sample


@dataclass(frozen=True)
class Answer:
    """One arm's answer to one question.

    arm: its name; key: see `Arm.key`. score: see `asking.score`. covered, error, entropy: means
    over all probed steps and layers, of the share of the softmax's mass that was attended to, of
    the error of attention's output, ‖o - o_full‖ / ‖o_full‖, and of the entropy of the softmax over
    all tokens, in nats. read: mean share of the stored tokens that was attended to, over the steps
    that did not read all. None where there were no such steps.
    """

    arm: str
    key: str
    question: int
    score: float
    text: str
    covered: float | None = None
    read: float | None = None
    error: float | None = None
    entropy: float | None = None


class ContextFolder:
    """The folder of one context, made on first use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._answers = path / "answers.jsonl"

    def sample(self, make: Callable[[], Sample]) -> tuple[str, list[Question]]:
        """The context and its questions: those in the folder, or new ones of `make()`."""
        context, questions = self.path / "context.txt", self.path / "questions.json"
        if not questions.exists():
            sample = make()
            make_folder(self.path)
            mode = mode_in(self.path)
            write_file(context, sample.context.encode(), mode)
            asked = [asdict(question) for question in sample.questions]
            write_file(questions, json.dumps(asked, indent=1).encode(), mode)
        read = json.loads(read_file(questions, MOST_TEXT))
        text = read_file(context, MOST_TEXT).decode("utf-8")
        return text, [Question(q["text"], q["reply"], tuple(q["answers"])) for q in read]

    @contextmanager
    def lock(self, wait: bool = True) -> Iterator[bool]:
        """Locks the context while the block runs; gives whether that was possible.

        wait: until no other process works on it. Makes the folder.
        """
        make_folder(self.path)
        with os.fdopen(open_regular(self._answers, writable=True, mode=mode_in(self.path))) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_locked = True
            except BlockingIOError:
                is_locked = False
            yield is_locked

    @property
    def n_questions(self) -> int:
        """Number of questions in the folder; 0 before they are written."""
        path = self.path / "questions.json"
        return len(json.loads(read_file(path, MOST_TEXT))) if path.exists() else 0

    def answers(self) -> list[Answer]:
        """All answers so far; removes a line that an interrupted run left incomplete."""
        if not self._answers.exists():
            return []
        with os.fdopen(open_regular(self._answers, writable=True), "r+b") as file:
            whole, newline, incomplete = file.read().rpartition(b"\n")
            if incomplete:
                file.truncate(len(whole) + len(newline))
        return [Answer(**json.loads(line)) for line in whole.splitlines()]

    def add(self, answer: Answer) -> None:
        """Save one more answer."""
        fd = open_regular(self._answers, writable=True, mode=mode_in(self.path))
        with os.fdopen(fd, "r+b") as file:
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(asdict(answer)).encode() + b"\n")

    def remove_packs(self) -> dict[Path, list[str]]:
        """Remove the KV caches, which are built again when needed.

        Returns the names that stay in each, see `runtime.packs.pack.remove_pack`.
        """
        left = {pack: remove_pack(pack) for pack in self._packs()}
        return {pack: names for pack, names in left.items() if names}

    @property
    def pack_bytes(self) -> int:
        """Disk space of the KV caches."""
        return sum(f.lstat().st_blocks * 512 for pack in self._packs() for f in pack.glob("*"))

    def _packs(self) -> list[Path]:
        return [path for path in sorted(self.path.glob("pack*")) if path.is_dir()]
