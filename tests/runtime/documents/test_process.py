"""The process that reads one document for a server: its limits, and what it tells."""

import json
import subprocess
import sys

import pytest

from kvarn.runtime.documents import __main__ as process

LIMITS = """
import resource
from kvarn.runtime.documents import __main__ as process
kinds = resource.RLIMIT_CORE, resource.RLIMIT_CPU, resource.RLIMIT_AS
process.text_of = lambda *_: " ".join(str(resource.getrlimit(kind)) for kind in kinds)
process.main()
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="no limit of memory is enforced there")
def test_a_document_is_read_under_limits_of_time_and_memory() -> None:
    words = [sys.executable, "-c", LIMITS, "x", ""]
    output = subprocess.run(words, input=b"x", stdout=subprocess.PIPE, check=True).stdout
    limits = (0, process.SECONDS, process.MEMORY)
    expected = " ".join(str((limit, limit)) for limit in limits)
    assert json.loads(output) == {"text": expected, "notices": []}


def test_a_document_that_takes_too_much_memory_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> str:
        raise MemoryError

    monkeypatch.setattr(process, "text_of", full)
    told = process.converted(b"x", "x.pdf", "")
    assert told == {"refused": "x.pdf takes more than 4 GiB to read: cut it in parts"}
