"""Writes mixes.json: the types that llama.cpp chooses. Needs llama-cpp-python.

python -m tests.convert.quantize.golden.make_mixes      (from the folder of the repository)
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from ..mixed import CASES, chosen_by_llama_cpp, summary

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        summaries = {
            name: {mix: summary(chosen_by_llama_cpp(case, mix, Path(folder))) for mix in case.mixes}
            for name, case in CASES.items()
        }
    target = Path(__file__).with_name("mixes.json")
    target.write_text(json.dumps(summaries, indent=1) + "\n")
