"""A headless Chromium, driven over a pipe by its DevTools protocol."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SECONDS = 60.0
_KEYS = {"Tab": ("Tab", 9, ""), "Enter": ("Enter", 13, "\r"), "Escape": ("Escape", 27, "")}


class Browser:
    """One page. errors: what its console said that is an error, or a warning of the browser."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers, self._rest, self._n = to, answers, b"", 0
        self._session: str | None = None
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self._n += 1
        message: dict[str, Any] = {"id": self._n, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._n:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What JavaScript makes of an expression."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str, seconds: float = SECONDS) -> None:
        """Wait for an expression to be true."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, f"{expression} did not become true: {self.errors}"
            time.sleep(0.02)

    def press(self, key: str, times: int = 1, shift: bool = False) -> None:
        """Press a key of `_KEYS`."""
        name, code, text = _KEYS[key]
        named = {"key": name, "code": name, "windowsVirtualKeyCode": code}
        for _ in range(times):
            more = {"text": text} if text else {}
            keys = {**named, "modifiers": 8 if shift else 0}
            self.call("Input.dispatchKeyEvent", type="keyDown", **keys, **more)
            self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def tab_to(self, id: str, shift: bool = False) -> None:
        """Press Tab until this element has the focus."""
        for _ in range(40):
            if self.value("document.activeElement?.id") == id:
                return
            self.press("Tab", shift=shift)
        raise AssertionError(f"Tab does not reach #{id}")

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._answers], [], [], SECONDS)[0], "Chromium is silent"
            piece = os.read(self._answers, 1 << 16)
            assert piece, "Chromium has ended"
            self._rest += piece
        first, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(json.dumps(params["args"])[:500])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A Chromium with its profile in an empty folder."""
    assert CHROMIUM is not None
    reads, to = os.pipe()
    answers, writes = os.pipe()
    options = (
        "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
        f"--disable-background-networking --remote-debugging-pipe --user-data-dir={folder}"
    ).split()
    # Chromium takes the pipe's ends as its descriptors 3 and 4.
    command = f'exec "$@" 3<&{reads} 4>&{writes}'
    process = subprocess.Popen(
        ["bash", "-c", command, "chromium", CHROMIUM, *options],
        pass_fds=(reads, writes),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(reads)
    os.close(writes)
    try:
        yield Browser(to, answers)
    finally:
        process.terminate()
        process.wait(30)
        os.close(to)
        os.close(answers)
