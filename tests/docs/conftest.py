"""Helpers stand in `document_commands.py` and `document_runner.py`, others in `tests/convert`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "convert")]
