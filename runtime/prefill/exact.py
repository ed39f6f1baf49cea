"""prefill `exact`: every token of a prompt reads all tokens before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..attend import Attend
from ..loading.model_info import ModelInfo
from ..store.facts import PrefillFacts
from .base import Prefill


@dataclass(frozen=True)
class Exact(Prefill):
    """softmax(scale · q Kᵀ) V over all tokens that the causal mask and the window allow."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = "each token reads all tokens before it"

    @property
    def host_only(self) -> str:
        return ""

    def is_exact_within(self, n_tokens: int) -> bool:
        return True

    def facts(self, model: ModelInfo) -> PrefillFacts | None:
        return None

    def wrap(self, attend: Attend) -> Attend:
        return attend
