"""The engine process as the server sees it: started, asked, started again when it dies.

For one event loop; imports no NumPy and no kernels.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal

import msgspec

from ...system.children import ending
from ...system.terminal import say
from .calls import Call, Calls, M, RequestRefused
from .flags import Flags
from .frames import LENGTH, BadMessage, Decoder, FrameError, checked_length, encoded
from .prompt import Prompt, Reading
from .protocol import (
    Counters,
    Digests,
    Done,
    Embed,
    FindBeginnings,
    FromEngine,
    Generate,
    ListPacks,
    Loading,
    Numbered,
    PackFacts,
    Packs,
    Pieces,
    Progress,
    ReadPack,
    Ready,
    Refused,
    Remember,
    RemovePack,
    Render,
    Rendered,
    Start,
    Stop,
    Vectors,
)

State = Literal["loading", "ready", "dead", "stopped"]

COMMAND = (sys.executable, "-P", "-m", "kvarn.runtime.serving")
LONGEST_PAUSE = 30.0
"""Seconds before a start, at most, after engines that died before they were ready."""
COMMITTING_SECONDS = 30.0
"""That an engine may take to save after its last stream has ended."""
_KILLED = "signal 9, as a system short of memory sends"


class EngineClient:
    """Starts an engine and speaks with it. Use: `open`, requests, `stop`.

    state: "loading", "ready", "dead" (it starts again soon), "stopped" (by `stop`, or because the
    first start failed; then `on_failure` is called). step: what it loads; reason: of its last
    death. facts: of the model, once it was ready. counters, notices: the last ones that it sent.
    restarts: how often it died.
    """

    def __init__(
        self,
        start: Start,
        notice: Callable[[str], None] = say,
        command: Sequence[str] = COMMAND,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.state: State = "loading"
        self.step, self.reason = "starting", ""
        self.facts: Ready | None = None
        self.counters: dict[str, float] = {}
        self.notices: list[str] = []
        self.restarts = 0
        self.pid = 0
        self._command, self._notice, self._on_failure = command, notice, on_failure
        self._flags, self._flags_path = Flags.create()
        self._start = msgspec.structs.replace(start, cancel_path=str(self._flags_path))
        self._calls = Calls(self._flags)
        self._decoder: Decoder[Any] = Decoder(FromEngine)
        self._writer: asyncio.StreamWriter | None = None
        self._living: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._announcement = ""
        self._failed = ""
        """Of a last engine that never was ready: why."""

    def announce(self, line: str) -> None:
        """Tell a line once an engine loads the model: then it has not refused its options."""
        self._announcement = line

    async def open(self) -> None:
        """Begin to start the engine."""
        self._living = asyncio.create_task(self._live())

    # Requests. Each raises `RequestRefused`; one that nobody waits for any more is cancelled.

    async def generate(
        self, prompt: Prompt, **fields: Any
    ) -> AsyncIterator[Progress | Pieces | Done]:
        """An answer; fields: the others of `Generate`. The last message is `Done`."""
        with self._call() as call:
            await self._send(Generate(call.id, call.slot, prompt, **fields))
            async for message in call.messages():
                yield message

    async def read_pack(
        self, name: str, text: str, reading: Reading | None = None
    ) -> AsyncIterator[Progress | Pieces | Done]:
        """Read a text into a pack: `Progress`, then `Done`."""
        with self._call() as call:
            await self._send(ReadPack(call.id, call.slot, name, text, reading or Reading()))
            async for message in call.messages():
                yield message

    async def render(self, prompt: Prompt, with_ids: bool = False, alone: bool = False) -> Rendered:
        """The text and the tokens of a prompt; alone: of a text as it stands."""
        return await self._ask(Rendered, lambda call: Render(call.id, prompt, with_ids, alone))

    async def beginnings(
        self, prompt: Prompt | None = None, reading: Reading | None = None
    ) -> list[str]:
        """The digests of a prompt's beginnings, or without one of all that was read."""
        words = reading or Reading()
        return (await self._ask(Digests, lambda it: FindBeginnings(it.id, prompt, words))).digests

    async def embed(self, prompts: list[Prompt], truncate: bool = False) -> Vectors:
        """A vector for each prompt."""
        return await self._ask(Vectors, lambda call: Embed(call.id, call.slot, prompts, truncate))

    async def packs(self) -> list[PackFacts]:
        """The packs that requests may name."""
        return (await self._ask(Packs, lambda call: ListPacks(call.id))).packs

    async def remove_pack(self, name: str) -> list[PackFacts]:
        """Remove a pack; those that are left."""
        return (await self._ask(Packs, lambda call: RemovePack(call.id, name))).packs

    async def remember(self, id: int, message: dict[str, Any]) -> None:
        """See `protocol.Remember`."""
        if self.state == "ready":
            await self._send(Remember(id, message))

    async def stop(self, seconds: float = Stop().seconds) -> None:
        """End the engine: streams have `seconds`, then it saves. Requests that are made from now on
        are refused."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(seconds))
        await asyncio.shield(self._stopping)

    async def _stop(self, seconds: float) -> None:
        living, was, self.state = self._living, self.state, "stopped"
        if living is not None:
            if was == "ready":
                await self._send(Stop(seconds))
                await asyncio.wait([living], timeout=seconds + COMMITTING_SECONDS)
            living.cancel()
            with suppress(asyncio.CancelledError):
                await living
        self._flags_path.unlink(missing_ok=True)

    def _call(self) -> AbstractContextManager[Call]:
        """A new call, if the engine can take one."""
        if self.state == "ready":
            return self._calls.open()
        why = {
            "loading": f"the model is loading ({self.step})",
            "dead": f"{self.reason}; it starts again",
            "stopped": "the server is ending",
        }[self.state]
        raise RequestRefused(Refused(0, "engine", f"{why}: try again later"))

    async def _ask(self, answer: type[M], asked: Callable[[Call], Numbered]) -> M:
        """The answer to what is asked in a call of its own."""
        with self._call() as call:
            await self._send(asked(call))
            return await call.answer(answer)

    async def _send(self, message: msgspec.Struct) -> None:
        if self._writer is not None:
            self._writer.write(encoded(message))
            with suppress(ConnectionError):  # the calls learn of it
                await self._writer.drain()

    # The process.

    async def _live(self) -> None:
        """Start engines, one after the other, until `stop`."""
        pause = 0.0
        try:
            while not self._is("stopped"):
                self.state, self.reason = "loading", ""
                self.step = f"starting{self._failed}"
                code = await self._run_engine()
                if self._is("stopped"):
                    return
                pause = 0.0 if self._is("ready") else min(max(2 * pause, 0.25), LONGEST_PAUSE)
                end = _KILLED if code == -signal.SIGKILL else ending(code)
                self.reason = self.reason or f"the engine ended with {end}"
                self._failed = "" if self._is("ready") else f"; last time it failed: {self.reason}"
                if self.facts is None:  # it never was ready: the next one would fail as well
                    self.state = "stopped"
                    self._on_failure()
                    return
                self.state = "dead"
                self.restarts += 1
                self._notice(self.reason)
                self._calls.fail(f"{self.reason}; it starts again: try again later")
                await asyncio.sleep(pause)
        finally:
            self._calls.fail(self.reason or "the server is ending")

    def _is(self, state: State) -> bool:
        return self.state == state

    async def _run_engine(self) -> int:
        """One engine, from its start to its end; returns its exit code."""
        here, other = socket.socketpair()
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                str(other.fileno()),
                pass_fds=(other.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at a terminal goes to the server alone
            )
            other.close()
            self.pid = process.pid
            reader, self._writer = await asyncio.open_connection(sock=here)
            await self._send(self._start)
            await self._receive(reader)
        except OSError as error:
            self.reason = f"the engine cannot be started: {error}"
        finally:
            other.close()
            here.close()
            self._writer = None
            if process is not None:
                code = await self._ended(process)
        return -1 if process is None else code

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        """Wait until the process is gone, which has hung up or must end."""
        try:
            return await asyncio.wait_for(process.wait(), 1.0)
        except (TimeoutError, asyncio.CancelledError):
            with suppress(ProcessLookupError):
                process.kill()
            return await process.wait()

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Take the engine's messages until it is gone."""
        while True:
            try:
                head = await reader.readexactly(LENGTH.size)
                data = await reader.readexactly(checked_length(LENGTH.unpack(head)[0]))
                self._take(self._decoder.decode(data))
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            except (BadMessage, FrameError) as error:
                self.reason = f"the engine sent no message: {error}"
                return

    def _take(self, message: Any) -> None:
        if isinstance(message, Loading):
            self.step = message.step + self._failed
            if self._announcement:
                self._notice(self._announcement)
                self._announcement = ""
        elif isinstance(message, Ready):
            self.facts = message
            if self.state == "loading":
                self.state = "ready"
            self._tell(message.notices)
        elif isinstance(message, Counters):
            self.counters = message.values
            self._tell(message.notices)
        elif isinstance(message, Refused) and message.id == 0:
            self.reason = message.message
        else:
            self._calls.deliver(message)

    def _tell(self, notices: list[str]) -> None:
        """Show the lines that were not shown before."""
        for line in notices:
            if line not in self.notices:
                self._notice(line)
        self.notices = notices
