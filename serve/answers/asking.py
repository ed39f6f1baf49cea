"""One answer that a request wants, in the engine's terms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ...runtime.chat.openai.tools import Tools
from ...runtime.sampling.constraints.form import Form
from ...runtime.serving.prompt import Prompt, Reading


@dataclass(frozen=True)
class Ask:
    """A prompt and how it is answered.

    sampling: options of `Sampler`. n_top: log probabilities of each token, and of so many others in
    its place; None: none. constraint: what the request says; a choice of tools is one, too.
    lens: the end of the answer says what it attended to.
    """

    prompt: Prompt
    max_tokens: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    stop: list[str] = field(default_factory=list)
    constraint: Form | None = None
    reading: Reading = field(default_factory=Reading)
    n_ctx: int | None = None
    n_top: int | None = None
    ignore_eos: bool = False
    echo: bool = False
    tools: Tools = field(default_factory=Tools)
    lens: bool = False

    def fields(self, special: bool, constraint: Form | None) -> dict[str, Any]:
        """The fields of `Generate` but its prompt."""
        sampling = dict(self.sampling)
        if self.n_top is not None:
            sampling["n_probs"] = max(1, self.n_top)
        names = "max_tokens stop ignore_eos echo reading n_ctx lens".split()
        return {name: getattr(self, name) for name in names} | {
            "sampling": sampling,
            "special": special,
            "constraint": constraint,
        }


def repeat(ask: Ask, times: int) -> list[Ask]:
    """So many answers to one prompt. A fixed seed grows by one with each, or all were the same."""
    seed = ask.sampling.get("seed")
    if seed is None:
        return [ask] * times
    return [replace(ask, sampling={**ask.sampling, "seed": seed + i}) for i in range(times)]
