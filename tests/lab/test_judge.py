"""A judged command's compiled functions and imports are counted, whichever process did them."""

import json
import platform
import sys
from pathlib import Path

import pytest

from kvarn.system.errors import KvarnError
from lab.arm import machine
from lab.wheels import judge as front
from lab.wheels.__main__ import MACHINES
from lab.wheels.judge import Installed, Verdict, judge, main, variants

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
        self.wfile.write(b'{"choices": [{"message": {"content": "Hello"}}]}')
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(f"kvarn: listening on http://127.0.0.1:{server.server_port}; Ctrl-C ends it", file=sys.stderr)
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
    assert verdict == (0, frozenset(), "") and verdict.is_right("")


def test_what_any_process_did_is_counted(tmp_path: Path) -> None:
    verdict = judged(tmp_path, COMPILES, "run")
    assert verdict == (2, {"llvmlite"}, "") and not verdict.is_right("")


def test_a_server_is_asked_until_it_answers_and_is_ended(tmp_path: Path) -> None:
    assert judged(tmp_path, SERVES, "serve").is_right("Hello")


@pytest.mark.parametrize(
    ("command", "text"), [("run", "geese\n"), ("chat", "geese\n"), ("bench", "")]
)
def test_the_text_is_what_a_command_generates(command: str, text: str, tmp_path: Path) -> None:
    program = 'import sys\nprint("geese")\nprint("stopped", file=sys.stderr)'
    assert judged(tmp_path, program, command).text == text


@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_command_that_fails_is_no_verdict(command: str, tmp_path: Path) -> None:
    with pytest.raises(KvarnError, match=r"ended with 3: no model"):
        judged(tmp_path, 'import sys\nprint("no model")\nsys.exit(3)', command)


def test_a_command_that_imports_is_wrong_even_if_it_keeps_nothing() -> None:
    verdicts = [Verdict(n, frozenset(names), "geese") for n, names in
                ((0, {"numba"}), (1, set()), (0, set()))]  # fmt: skip
    assert [one.is_right("geese") for one in verdicts] == [False, False, True]
    assert not verdicts[-1].is_right("ducks")


def test_an_emulator_has_the_features_of_its_cpu(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"#!{sys.executable}\nfrom kvarn.jit import variant\n"
                    "assert variant.host_features() == {'neon', 'dotprod'}")  # fmt: skip
    path.chmod(0o755)
    judge([str(path)], {"KVARN_JUDGE_FEATURES": "dotprod neon"})


@pytest.mark.parametrize(("features", "names"), [
    ("fp-armv8 neon crc", []),
    ("fp-armv8 neon crc lse fullfp16 rdm rcpc dotprod i8mm sve", ["neon"]),
])  # fmt: skip
def test_variants_are_those_that_the_cpu_runs(
    features: str, names: list[str], tmp_path: Path
) -> None:
    (bundled := tmp_path / "kvarn/bundled").mkdir(parents=True)
    (bundled / "targets.json").write_text(json.dumps(MACHINES["aarch64"]))
    installed = Installed(tmp_path, ["kvarn"], frozenset(features.split()), {})
    assert list(variants(installed)) == names


def test_choices_of_this_process_are_not_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KVARN_CACHE", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "1")
    hidden = ("KVARN_CACHE", "XDG_", "NUMBA_", "PYTHONHASHSEED")
    program = f"import os\nassert not [n for n in os.environ if n.startswith({hidden!r})]"
    assert judged(tmp_path, program, "run").is_right("")


def test_a_wheel_for_arm_is_judged_in_emulation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(machine, "why_not", lambda: "install qemu-user-static")
    assert main(["kvarn-0.0-py3-none-manylinux_2_28_aarch64.whl", "model.gguf"]) == 1
    assert capsys.readouterr().err == "kvarn: judging a wheel for ARM: install qemu-user-static\n"


@pytest.mark.parametrize(
    ("here", "there", "word", "code"),
    [("geese", "geese", "same", 0), ("geese", "ducks", "other", 1), ("", "", "-", 0)],
)
def test_another_text_than_the_checkouts_is_told(
    here: str, there: str, word: str, code: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    installed = Installed(Path("site"), ["kvarn"], frozenset(), {})
    monkeypatch.setattr(front, "install", lambda *_: installed)
    monkeypatch.setattr(front, "variants", lambda _: ["avx2"])
    monkeypatch.setattr(front, "judge", lambda *_: Verdict(0, frozenset(), there))
    monkeypatch.setattr(front, "_text_here", lambda *_: here)
    assert main(["kvarn-0.0-py3-none-any.whl", "m.gguf", "--command", "run"]) == code
    assert capsys.readouterr().out.splitlines()[1].split() == ["avx2", "m", "0", "-", word, "run"]
