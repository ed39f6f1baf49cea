"""With kernels in the cache a process gets to its first tokens without importing Numba."""

import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[2] / "mini" / "kvarn-mini.gguf"
PROGRAM = """
import sys
import kvarn
from kvarn.ops import threads

context = kvarn.load(sys.argv[1]).context(512, store=kvarn.Ram(sys.argv[2], sys.argv[2]))
context.prefill(list(range(5, 105)))
sampler = kvarn.Sampler(temp=0)
n = len(list(context.generate_ids(max_tokens=3, sampler=sampler)))
needs_numba = not threads.uses_gnu()  # whose threads run the kernels then
print(n, ("numba" in sys.modules) == needs_numba)
"""


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_the_default_model_starts_without_numba(kv_type: str) -> None:
    for _ in range(2):  # the first may compile
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, MODEL, kv_type],
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split() == ["3", "True"]
