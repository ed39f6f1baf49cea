"""Timing prefill and decode at any depth, reported as llama-bench reports them.

`cases`: what is measured; `measure`: measuring it; `report`: tables; `page_cache`: cold files.
"""

from .cases import Case, Result, Setting, method_name
from .measure import Observer, run_depth, run_settings
from .report import render

__all__ = [
    "Case",
    "Observer",
    "Result",
    "Setting",
    "method_name",
    "render",
    "run_depth",
    "run_settings",
]
