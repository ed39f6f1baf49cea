"""The desktop program: a real window under Xvfb, driven by keys."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarn.runtime.capi import build as building
from kvarn.runtime.chat.conversation import Conversation
from kvarn.runtime.chat.template import PLAIN_STOP, ChatTemplate
from kvarn.runtime.loading.default_model import default_model_path
from kvarn.runtime.loading.load import load
from kvarn.runtime.sampling import Sampler

from .conftest import HERE

pytestmark = pytest.mark.slow

EXAMPLE = Path(building.__file__).parent / "examples" / "desktop"
TEXT = "".join(
    f"The miller kept {i} white geese, the smith {i * 7 % 93} grey. " for i in range(120)
)
QUESTION = "How many geese?"
PROJECT = f"""
cmake_minimum_required(VERSION 3.16)
project(driven LANGUAGES CXX)
add_subdirectory({EXAMPLE} example)
set(CMAKE_CXX_STANDARD 17)
find_package(Qt6 REQUIRED COMPONENTS Widgets Test)
add_executable(drive {HERE}/drive.cpp)
target_include_directories(drive PRIVATE {EXAMPLE} ${{KVARN_INCLUDE}})
target_link_libraries(drive PRIVATE Qt6::Widgets Qt6::Test ${{KVARN_LIBRARY}})
"""


@pytest.fixture(scope="module")
def programs(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the desktop program and of what drives it; skips where they cannot be built."""
    for program in ("cmake", "c++", "Xvfb"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: the desktop program is not tested")
    folder = tmp_path_factory.mktemp("desktop")
    (folder / "CMakeLists.txt").write_text(PROJECT)
    command = ["cmake", "-S", str(folder), "-B", str(folder), f"-DCMAKE_PREFIX_PATH={built}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Qt6" in done.stderr:
        pytest.skip("Qt 6 is not installed (Debian: qt6-base-dev)")
    assert done.returncode == 0, done.stderr
    command = ["cmake", "--build", str(folder), "--parallel", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", "1000x700x24"]
    server = subprocess.Popen(command, pass_fds=(write,), stderr=subprocess.DEVNULL)
    os.close(write)
    number = os.read(read, 20).decode().strip()
    yield f":{number}"
    server.terminate()
    server.wait(10)
    os.close(read)


class Desk:
    """A user's desk: where the program keeps what it knows, and a document."""

    def __init__(self, programs: Path, environment: dict[str, str], display: str, home: Path):
        self.programs, self.home = programs, home
        self.document = home / "the miller è.txt"
        self.document.write_text(TEXT)
        (home / "run").mkdir(mode=0o700)
        folders = {"XDG_DATA_HOME": "data", "XDG_CONFIG_HOME": "config", "XDG_RUNTIME_DIR": "run"}
        self.environment = {
            **environment, "DISPLAY": display, "LC_ALL": "C.UTF-8",
            **{name: str(home / folder) for name, folder in folders.items()},
        }  # fmt: skip

    def start(self, *keys: str) -> subprocess.Popen[str]:
        command = [str(self.programs / "drive"), f"{self.home}/screen.png", str(self.document)]
        return subprocess.Popen(
            [*command, *keys], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, encoding="utf-8",
        )  # fmt: skip

    def drive(self, *keys: str) -> list[tuple[str, str]]:
        """What the window shows meanwhile: (what, text)."""
        driven = self.start(*keys)
        out, err = driven.communicate(timeout=300)
        assert (driven.returncode, err) == (0, ""), (driven.returncode, out, err)
        return [tuple(line.split(" ", 1)) for line in out.splitlines()]


@pytest.fixture
def desk(programs: Path, environment: dict[str, str], display: str, tmp_path: Path) -> Desk:
    return Desk(programs, environment, display, tmp_path)


@pytest.fixture(scope="module")
def answer() -> str:
    """What the Python interface answers."""
    model = load(default_model_path())
    with model.context(16384) as context:
        context.prefill(model.tokenizer.encode(TEXT, bos=True))
        template = model.chat_template or ChatTemplate.plain(model.tokenizer.control)
        conversation = Conversation(context, template)
        conversation.base, conversation.max_tokens = len(context.tokens), 24
        conversation.stop = [] if model.chat_template else [PLAIN_STOP]
        conversation.sampler = Sampler(temp=0, logit_bias={0: -100.0})
        return "".join(conversation.ask(QUESTION))


def shown(facts: list[tuple[str, str]]) -> str:
    return dict(facts)["conversation"]


def as_line(answer: str) -> str:
    return f"> {QUESTION} {answer}".replace("\n", " ")


def test_it_reads_and_answers(desk: Desk, answer: str) -> None:
    facts = desk.drive(QUESTION)
    found = dict(facts)
    progress = [int(text.split()[0]) for what, text in facts if what == "progress"]
    total = int(found["progress"].split()[1])
    assert progress == sorted({0, *range(512, total, 512), total})
    assert found["read"].startswith(f"Read {total} tokens; ") and "tokens/s" in found["read"]
    assert found["status"].startswith("24 tokens, ") and "tokens/s" in found["status"]
    assert shown(facts) == as_line(answer)
    assert int(found["dark"]) > 300  # of the letters of question and answer, on the X server
    assert (desk.home / "screen.png").stat().st_size > 1000


def test_killed_while_it_reads_it_goes_on_from_there(desk: Desk, answer: str) -> None:
    driven = desk.start()
    assert driven.stdout is not None
    for line in driven.stdout:
        what, *numbers = line.split()
        if what == "progress" and int(numbers[0]) >= 1024:
            break
    driven.kill()
    driven.wait(30)
    assert int(numbers[0]) < int(numbers[1])
    facts = desk.drive(QUESTION)
    read = dict(facts)["read"]
    earlier = int(read.split(" of them earlier")[0].split()[-1])
    assert earlier >= 512 and earlier % 512 == 0
    first = next(int(text.split()[0]) for what, text in facts if what == "progress")
    assert first == earlier
    assert shown(facts) == as_line(answer)


def test_escape_stops_it_and_ctrl_r_reads_on(desk: Desk, answer: str) -> None:
    facts = desk.drive("Esc", "Ctrl+R", QUESTION)
    found = dict(facts)
    assert found["read"].startswith("Stopped after ")
    assert any(w == "status" and " of them earlier" in text for w, text in facts)
    assert shown(facts) == as_line(answer)


def test_the_last_document_is_opened_again_at_start(desk: Desk) -> None:
    """The program itself, without arguments: a store of that document is there again."""
    desk.drive()
    stores = desk.home / "data" / "kvarn-desktop"
    (store,) = stores.iterdir()
    shutil.rmtree(store)
    program = subprocess.Popen([str(desk.programs / "example" / "desktop")], env=desk.environment)
    try:
        until = time.monotonic() + 60
        while not (store / "commits").exists():
            assert time.monotonic() < until and program.poll() is None
            time.sleep(0.05)
    finally:
        program.kill()
        program.wait(30)
