"""A mapped file as a whole."""

import sys
from pathlib import Path

import pytest

from kvarn.runtime.gguf.source import Source


def resident_bytes(path):
    """What the system has mapped of a file, as it says itself."""
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.endswith(str(path)):
            return next(int(field.split()[1]) * 1024 for field in lines if field[:4] == "Rss:")
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/smaps")
def test_all_pages_of_a_touched_file_are_mapped(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(bytes(1 << 20))
    source = Source(path)
    assert resident_bytes(path) == 0
    source.touch()
    assert resident_bytes(path) == 1 << 20
