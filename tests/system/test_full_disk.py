"""A file that cannot be written: the error names what the user asked for, and leaves nothing."""

import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvarn.system.files import new_file, write_file


@pytest.fixture
def small_files() -> Iterator[None]:
    """Files of this process end at 1,000 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_write_that_fails_names_the_target(small_files: None, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large") as raised:
        write_file(tmp_path / "out", bytes(5000))
    assert (raised.value.errno, raised.value.filename) == (errno.EFBIG, str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_file_names_the_target() -> None:
    """In /proc nobody makes one, root neither."""
    target = Path("/proc/out.kvpack")
    with pytest.raises(OSError, match=r"/proc/out\.kvpack") as raised:
        write_file(target, b"x")
    assert raised.value.filename == str(target)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), FileNotFoundError(2, "gone", "source")]
)
def test_errors_of_other_files_stay_as_they_are(error: OSError, tmp_path: Path) -> None:
    before = error.filename
    with pytest.raises(type(error)) as raised, new_file(tmp_path / "out"):
        raise error
    assert raised.value is error and error.filename == before
