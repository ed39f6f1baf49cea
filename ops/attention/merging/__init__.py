"""Attention to all tokens from attention to parts of them, as several processes have it."""

from .api import NO_SINKS as NO_SINKS
from .api import MergeScratch as MergeScratch
from .api import merge_parts as merge_parts
