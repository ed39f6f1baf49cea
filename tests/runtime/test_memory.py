"""Sizes in words, memory in numbers."""

import sys

import numpy as np
import pytest

from kvarn.runtime.memory import available_bytes, human_bytes, peak_resident_bytes

from ..programs import printed


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 30, "5 GiB"),
        ((1 << 30) - 1, "1024 MiB"),
        (1000 << 30, "1000 GiB"),
        (3 << 50, "3 PiB"),
    ],
)
def test_sizes_read_well(n_bytes: int, text: str) -> None:
    assert human_bytes(n_bytes) == text


def test_memory_figures_are_plausible() -> None:
    assert 1 << 24 < peak_resident_bytes() < 1 << 44
    assert 1 << 24 < available_bytes() < 1 << 44


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_programs_peak_is_not_that_of_its_parent() -> None:
    held = np.ones(200 << 20, np.uint8)
    code = "from kvarn.runtime.memory import peak_resident_bytes; print(peak_resident_bytes())"
    assert int(printed(code)) < held.nbytes < peak_resident_bytes()
