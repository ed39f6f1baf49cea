"""A server that listens on the loopback while a test runs."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvarn.runtime.serving.client import EngineClient
from kvarn.serve.running import listen, server
from kvarn.serve.service import Service
from kvarn.serve.settings import Limits, Settings
from kvarn.serve.wire.log import Log

SETTINGS = Settings(Path("toy.gguf"), Path("cache"), 0)


@contextmanager
def serving(engine: EngineClient, limits: Limits | None = None, **changes: Any) -> Iterator[str]:
    """The address of a server over this engine, with these settings. Ends it in the end."""
    settings = replace(SETTINGS, limits=limits or Limits(stop_seconds=1), **changes)
    listener = listen("127.0.0.1", 0)
    running = server(Service(settings, engine, Log(settings.log)))
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running.handle_exit(0, None)
        thread.join(30)
        assert not thread.is_alive()
