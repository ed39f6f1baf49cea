"""The server's process: what it imports, and that it answers while the model loads."""

import asyncio
import socket

from kvarn.serve.running import listen

from ..programs import printed

HEAVY = ("numpy", "numba", "llvmlite", "jinja2", "tokenizers", "prometheus_client", "llguidance")
SCRIPT = f"""
import sys
import kvarn.serve.apis
import kvarn.serve.running
import kvarn.runtime.serving.client
print(*[name for name in {HEAVY!r} if name in sys.modules])
print(*[name for name in sys.modules if name.startswith(("kvarn.ops", "kvarn.jit"))])
"""


def test_the_server_imports_nothing_that_computes() -> None:
    assert printed(SCRIPT) == "\n\n"


def test_answers_are_sent_at_once() -> None:
    """Head and body are two writes: without TCP_NODELAY the second waits for 40 ms."""

    async def option() -> int:
        accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        listener = listen("127.0.0.1", 0)
        async with await asyncio.start_server(
            lambda _, writer: accepted.set_result(writer), sock=listener
        ):
            _, client = await asyncio.open_connection(*listener.getsockname())
            connection = (await accepted).get_extra_info("socket")
            value = int(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            (await accepted).close()
            client.close()
        return value

    assert asyncio.run(option())
