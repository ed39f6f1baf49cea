"""The server's process: what it imports, and that it answers while the model loads."""

import subprocess
import sys

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
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "\n\n"), done.stderr
