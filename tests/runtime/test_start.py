"""With kernels in the cache a process gets to its first tokens without importing Numba."""

import pytest

from kvarn.runtime.loading.default_model import default_model_path

from ..programs import printed

MODEL = default_model_path()
PROGRAM = """
import sys
import kvarn
from kvarn.jit import threads

kv_type, attend, keep = sys.argv[2], *(eval(text) for text in sys.argv[3:])
model = kvarn.load(sys.argv[1])
context = model.context(1200, attend, keep, kvarn.Ram(kv_type, kv_type))
context.prefill([5 + i % 300 for i in range(1100)])
sampler = kvarn.Sampler(temp=0)
n = len(list(context.generate_ids(max_tokens=3, sampler=sampler)))
needs_numba = not threads.uses_gnu()  # whose threads run the kernels then
print(n, ("numba" in sys.modules) == needs_numba)
"""


@pytest.mark.parametrize(
    ("kv_type", "attend", "keep"),
    [
        ("f16", "None", "None"),
        ("q8_0", "None", "None"),
        ("q4_0", "None", "None"),
        ("f16", "kvarn.Hash(64, sink=4, window=16)", "None"),
        ("f16", "kvarn.TopK(64, window=16)", "None"),
        ("f16", "kvarn.TopK(64, window=16, tail='means')", "None"),
        ("f16", "kvarn.TopK(64, window=16, index='flat')", "None"),
        ("f16", "None", "kvarn.HashEvict(256)"),
        ("f16", "None", "kvarn.Streaming(256)"),
        ("f16", "None", "kvarn.NaCl(256)"),
    ],
)
def test_the_default_model_starts_without_numba(kv_type: str, attend: str, keep: str) -> None:
    for _ in range(2):  # the first may compile
        done = printed(PROGRAM, MODEL, kv_type, attend, keep)
    assert done.split() == ["3", "True"]


SHORT = """
import sys
before = set(sys.modules)
from kvarn.cli import main
code = main(["run", sys.argv[1], "-p", "hi", "-n", "1"])
print()
print(code, *sorted((set(sys.modules) - before) & set(sys.argv[2:])))
"""


def test_a_short_prompt_loads_no_bars_and_no_processes() -> None:
    needless = ["tqdm", "multiprocessing", "numba"]
    for _ in range(2):  # the first may compile
        done = printed(SHORT, MODEL, *needless)
    assert done.splitlines()[-1] == "0"
