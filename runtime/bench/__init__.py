"""Timing prefill and decode at any depth, reported as llama-bench reports them.

`cases`: what is measured; `measure`: measuring it; `report`: tables; `page_cache`: cold files.
"""

from .cases import Case as Case
from .cases import Result as Result
from .cases import Setting as Setting
from .cases import method_name as method_name
from .measure import Observer as Observer
from .measure import run_depth as run_depth
from .measure import run_settings as run_settings
from .report import render as render
