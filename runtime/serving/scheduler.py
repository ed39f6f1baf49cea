"""Which request the engine works on next: prompts are read in slices, answers decode together.

One pass after the other runs on the engine thread. While a prompt is read and answers wait, the
prompt pauses, twice in each layer, and the answers decode: after t seconds of reading for
t · SHARE / (1 - SHARE) seconds (`Scheduler._pause`). Prompts take turns, slice by slice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...jit.launch.launcher import Stopped
from ...system.errors import KvarnError, message_of
from ..context.batch import Batch, SaveFailed
from ..stats import Clock
from .drafts import draft_room
from .protocol import Counters
from .refusal import Refusal, refusal_of
from .tasks import AnswerTask, Task

if TYPE_CHECKING:
    import msgspec

    from .library import Library

SHARE = 0.3
"""Of the time, what answers have while prompts are read."""
SLICES = (64, 128, 256, 512)
"""Tokens of a prompt that are read at a time: the most that take `SLICE_SECONDS` while other
prompts wait, `PAUSED_SECONDS` beside answers alone (for which a prompt that comes meanwhile waits);
else the last. Small slices cost more (512 tokens of a 1B model in slices of 128: 1.13 times)."""
SLICE_SECONDS, PAUSED_SECONDS = 1.5, 6.0
LEAST_OWED = 0.02
"""Seconds of decoding that are worth a pause: the first token takes longer than others."""
POLL_SECONDS = 0.02
"""Seconds after which flags are read again, while all that runs is paused."""
_MOST_NOTICES = 20
_COUNTED = (
    *("requests", "prompt_tokens", "generated_tokens", "drafted_tokens", "accepted_tokens"),
    *("read_seconds", "decode_seconds"),
)
REPORT_SECONDS = 1.0
"""Seconds between two `Counters`."""


class Scheduler:
    """Runs tasks: at most `parallel` at the same time, the others wait in their order.

    `put` and `stop` may be called by any thread; `run` has the engine thread.
    """

    def __init__(
        self, parallel: int, batch: Batch, library: Library, send: Callable[[msgspec.Struct], None]
    ) -> None:
        self._parallel, self._batch, self._library, self._send = parallel, batch, library, send
        self.notices: list[str] = []
        """Lines for the user, sent with the counters."""
        self._waiting: deque[Task] = deque()
        self._active: list[Task] = []
        self._changed = threading.Condition()
        self._stop_at: float | None = None
        self._speed = self._owed = self._reading_since = 0.0
        """Tokens per second of the last slice; seconds of decoding that reading has delayed; when
        what is read now began, or went on."""
        self._counts: dict[str, float] = dict.fromkeys(_COUNTED, 0)
        self._reported: tuple[float, dict[str, float]] = (0.0, {})

    def put(self, task: Task) -> None:
        """Do a task once it is its turn."""
        with self._changed:
            self._waiting.append(task)
            self._changed.notify()

    def stop(self, seconds: float) -> None:
        """Begin no task; end those that run within `seconds`; then `run` returns."""
        with self._changed:
            self._stop_at = min(time.monotonic() + seconds, self._stop_at or float("inf"))
            self._changed.notify()
        ending = threading.Timer(seconds, self._cancel)
        ending.daemon = True
        ending.start()

    def _cancel(self) -> None:
        """End what runs, in the middle of a pass, too."""
        for task in list(self._active):
            task.cancel()

    @property
    def is_stopping(self) -> bool:
        return self._stop_at is not None

    def run(self) -> None:
        """Work until `stop`."""
        while True:
            with self._changed:
                while not (self._active or self._waiting or self.is_stopping):
                    self._report(final=True)
                    self._changed.wait()
                if self._stop_at is not None and not (self._active or self._waiting):
                    break
            self._end_finished(self._active)
            self._admit()
            if self._active and not self._step():
                time.sleep(POLL_SECONDS)
            self._report()
        self._library.close()

    def _step(self) -> bool:
        """Read a slice, or decode a token of each answer; False if there is nothing to do now."""
        readers, answers = [task for task in self._active if task.reads], self._decoding()
        if answers and (not readers or self._owed > 0):
            self._decode_owed(answers)
            if not readers:
                self._owed = 0.0
        elif readers:
            others = len(readers) > 1 or bool(self._waiting)
            self._read(readers[0], self._slice(others, bool(answers)))
        return bool(answers or readers)

    def _decoding(self) -> list[AnswerTask]:
        """The answers that wait for their next token."""
        return [
            task
            for task in self._active
            if isinstance(task, AnswerTask) and task.next_token is not None and not task.is_paused
        ]

    def _pause(self, reader: Task) -> None:
        """All that happens in the middle of a pass, while the prompt of `reader` is paused: answers
        decode for the time that they are owed, and end. None of it computes in the memory of the
        pass: answers that would have to read tokens again wait for its end, as all others do."""
        self._charge()
        least = LEAST_OWED
        while True:
            others = [task for task in self._active if task is not reader]
            settled = [task for task in others if isinstance(task, AnswerTask) and task.is_settled]
            self._end_finished(settled)
            answers = [task for task in self._decoding() if task in settled]
            if not answers or self._owed <= least:
                break
            least = 0.0
            self._decode_owed(answers)
        self._report()
        self._reading_since = time.perf_counter()

    def _charge(self) -> None:
        """Count the time since reading began, or went on, and what of it answers are owed."""
        seconds = time.perf_counter() - self._reading_since
        self._count("read_seconds", seconds)
        owed = self._owed + seconds * SHARE / (1 - SHARE)
        self._owed = owed if self._decoding() else 0.0

    def _decode_owed(self, answers: list[AnswerTask]) -> None:
        """`_decode`, and count the time that it takes."""
        began = time.perf_counter()
        self._decode(answers)
        seconds = time.perf_counter() - began
        self._owed = max(self._owed - seconds, -1.0)
        self._count("decode_seconds", seconds)

    def _slice(self, others: bool, answers: bool) -> int:
        """How many tokens of a prompt are read; others, answers: whether other prompts, and
        answers, wait meanwhile."""
        if not (others or answers):
            return SLICES[-1]
        seconds = PAUSED_SECONDS if self._batch.can_pause and not others else SLICE_SECONDS
        return max((n for n in SLICES if n <= self._speed * seconds), default=SLICES[0])

    def _read(self, task: Task, n_tokens: int) -> None:
        """Read a slice of a prompt, which then is the last in the line."""
        self._active.remove(task)
        self._active.append(task)

        def read() -> None:
            clock = Clock()
            with self._batch.pausing(partial(self._pause, task)):
                n_read = task.read(n_tokens)
            if n_read:  # else it indexes
                self._speed = n_read / sum(clock.read())
            self._count("prompt_tokens", n_read)

        self._reading_since = time.perf_counter()
        self._run_step(task, read)
        self._charge()

    def _decode(self, answers: list[AnswerTask]) -> None:
        """At least one token more of each answer, all in one pass."""
        contexts, drafts = zip(*((task.context, task.next_draft) for task in answers))
        tokens = [task.next_token for task in answers if task.next_token is not None]
        unsaved: dict[int, KvarnError] = {}
        try:
            self._batch.decode_together(contexts, tokens, drafts)
        except Stopped:
            return  # one is cancelled; the others are as they were
        except SaveFailed as error:
            unsaved = error.problems
        except Exception as error:
            if len(answers) == 1:
                self._refuse(answers[0], error)
            else:  # only those at fault shall end
                for task in answers:
                    self._decode([task])
            return
        self._count("drafted_tokens", sum(map(len, drafts)))
        for number, task in enumerate(answers):
            if number in unsaved:
                self._refuse(task, unsaved[number])
                continue
            task.draft_room = draft_room(len(answers))
            self._run_step(task, partial(self._sample, task))

    def _sample(self, task: AnswerTask) -> None:
        """Choose the next token of an answer, and all further ones that a pass has read."""
        while True:
            task.sample()
            self._count("generated_tokens", 1)
            if (token := task.next_token) is None or not task.context.reads_ahead(token):
                break
            task.context.decode(token)
            self._count("accepted_tokens", 1)

    def _run_step(self, task: Task, step: Callable[[], None]) -> None:
        """Do a step of a task; one that fails ends its task alone."""
        try:
            step()
        except Stopped:
            pass  # its flag is set
        except Exception as error:
            self._refuse(task, error)

    def _end(self, task: Task, cancelled: bool = False) -> None:
        if task in self._active:
            self._active.remove(task)
        self._run_step(task, lambda: task.close("cancelled" if cancelled else task.finish))

    def _end_finished(self, tasks: Sequence[Task]) -> None:
        """End those of these active tasks that are done or were cancelled, and all of them once the
        time to stop has come; and what waits in vain."""
        stop_at = self._stop_at
        is_over = stop_at is not None and time.monotonic() >= stop_at
        for task in list(tasks):
            if task.finish is not None:
                self._end(task)
            elif is_over or task.is_cancelled:
                self._end(task, cancelled=True)
        with self._changed:
            ended = [task for task in self._waiting if stop_at is not None or task.is_cancelled]
            self._waiting = deque(task for task in self._waiting if task not in ended)
        for task in ended:
            if task.is_cancelled:
                self._end(task, cancelled=True)
            else:
                self._refuse(task, Refusal("busy", "the server is ending"))

    def _admit(self) -> None:
        """Begin what waits, as long as there is room."""
        while len(self._active) < self._parallel:
            with self._changed:
                if not self._waiting:
                    return
                task = self._waiting.popleft()
            self._active.append(task)
            self._count("requests", 1)
            self._run_step(task, task.open)

    def _refuse(self, task: Task, error: Exception) -> None:
        """End a task that failed."""
        if task in self._active:
            self._active.remove(task)
        try:
            task.close(None)
        except Exception as second:
            error.add_note(f"and on closing: {message_of(second)}")
        self._send(refusal_of(task.id, error))

    def _count(self, name: str, n: float) -> None:
        self._counts[name] += n

    def _report(self, final: bool = False) -> None:
        """Send the counters, every second while they change, and before all is idle."""
        at, values = self._reported
        now = time.monotonic()
        if not final and now - at < REPORT_SECONDS:
            return
        counts = {
            **self._counts,
            "active": float(len(self._active)),
            "waiting": float(len(self._waiting)),
            "library_bytes": float(self._library.n_bytes),
            "library_written_bytes": float(self._library.written_bytes),
            "library_texts": float(self._library.n_entries),
        }
        if counts != values:
            self._send(Counters(counts, self.notices[-_MOST_NOTICES:]))
            self._reported = now, counts
