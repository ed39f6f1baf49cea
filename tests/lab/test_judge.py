"""A judged command's compiled functions and imports are counted, whichever process did them."""

import sys
from pathlib import Path

import pytest

from kvarn.system.errors import KvarnError
from lab.wheels.judge import Verdict, judge

LOOKS = """
from importlib.util import find_spec
assert find_spec("numba") and find_spec("llvmlite")
"""
COMPILES = """
import subprocess, sys
from pathlib import Path
kernels = Path.home() / ".cache/kvarn/kernels/avx2-1"
kernels.mkdir(parents=True)
for name in ("a-1.code", "b-2.kernel", "sources-3.digests"):
    (kernels / name).touch()
subprocess.run([sys.executable, "-c", "import llvmlite.binding"], check=True)
"""
SERVES = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    statuses = [503, 200]
    def do_POST(self):
        assert b"messages" in self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.statuses.pop(0))
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(f"kvarn: listening on http://127.0.0.1:{server.server_port}; Ctrl-C ends it", flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    sys.exit(len(Handler.statuses))
"""


def judged(tmp_path: Path, program: str, *words: str) -> Verdict:
    path = tmp_path / "program.py"
    path.write_text(f"#!{sys.executable}\n{program}")
    path.chmod(0o755)
    return judge([str(path), *words], {})


def test_looking_for_a_package_imports_nothing(tmp_path: Path) -> None:
    verdict = judged(tmp_path, LOOKS, "run")
    assert verdict == (0, frozenset()) and verdict.is_right


def test_what_any_process_did_is_counted(tmp_path: Path) -> None:
    verdict = judged(tmp_path, COMPILES, "run")
    assert verdict == (2, {"llvmlite"}) and not verdict.is_right


def test_a_server_is_asked_until_it_answers_and_is_ended(tmp_path: Path) -> None:
    assert judged(tmp_path, SERVES, "serve").is_right


@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_command_that_fails_is_no_verdict(command: str, tmp_path: Path) -> None:
    with pytest.raises(KvarnError, match=r"ended with 3: no model"):
        judged(tmp_path, 'import sys\nprint("no model")\nsys.exit(3)', command)


def test_a_command_that_imports_is_wrong_even_if_it_keeps_nothing() -> None:
    verdicts = Verdict(0, frozenset({"numba"})), Verdict(1, frozenset()), Verdict(0, frozenset())
    assert [one.is_right for one in verdicts] == [False, False, True]


def test_choices_of_this_process_are_not_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KVARN_CACHE", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "1")
    hidden = ("KVARN_CACHE", "XDG_", "NUMBA_", "PYTHONHASHSEED")
    program = f"import os\nassert not [n for n in os.environ if n.startswith({hidden!r})]"
    assert judged(tmp_path, program, "run").is_right
