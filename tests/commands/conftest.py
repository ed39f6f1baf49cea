"""Helpers stand in `command_lines.py` and `line_runner.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
