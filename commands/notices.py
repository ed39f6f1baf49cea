"""Notices that commands share: lines on stderr about what a user may not expect."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..runtime.loading.default_model import default_model_path
from ..system.terminal import say
from ..system.text import one_line
from . import REAL_MODEL

if TYPE_CHECKING:
    from ..convert.quantize.files import Report
    from ..runtime.model import Model


def tell_of_base_model(model: Model) -> None:
    """Say that a model was not trained to answer, where its file says so."""
    if model.info.is_base:
        say(
            f"{model.name} is a base model: it continues texts and may not answer; "
            f"`kvarn chat -hf {REAL_MODEL}` gets a model that was trained to"
        )


def tell_of_template(model: Model) -> None:
    """Say what a model lacks for a conversation: training, or a chat template (and what its turns
    look like)."""
    if model.chat_template is not None:
        tell_of_base_model(model)
        return
    say(
        f"{model.name} has no chat template and was probably not trained to answer: it continues "
        "texts (turns are marked '### User:' and '### Assistant:'); "
        f"`kvarn chat -hf {REAL_MODEL}` gets a model that was"
    )


def tell_of_plain_prompt(model: Model) -> None:
    """Say that a prompt is continued as a text, where the user may expect an answer."""
    if "tokenizer.chat_template" in model.file.metadata:
        if not model.info.is_base:
            say(
                f"{model.name} has a chat template and may expect messages: --instruct sends the "
                "prompt as one"
            )
    elif model.path == default_model_path() and sys.stderr.isatty():
        millions = model.file.n_parameters / 1e6
        say(
            f"{model.name} is a small base model ({millions:.1f}M parameters): it continues texts "
            f"and answers no questions; `kvarn chat -hf {REAL_MODEL}` gets one that does"
        )


def tell_of_control_tokens(model: Model, prompt: str) -> None:
    """Say that control tokens in the prompt are read as text."""
    if written := model.tokenizer.control.find(prompt):
        say(
            f"{one_line(written[0], 40)} in the prompt is read as text: --special reads control "
            "tokens as such, --instruct writes those of messages"
        )


def tell_of_limit(finish: str | None, n_tokens: int) -> None:
    """Say which limit ended an answer of so many tokens."""
    if finish == "length":
        say(f"stopped after {n_tokens:,} tokens, the limit of -n (-n -1: no limit)")
    elif finish == "context":
        say("stopped: the context is full; use a larger --ctx")


def tell_of_dropped_encoders(source: Path, report: Report) -> None:
    """Say that a model of other types lacks the encoders that its source has."""
    if report.dropped_encoders:
        say(
            f"the hash encoders in {source.name} are left out: they fit its keys and queries "
            "alone; `kvarn learn` trains others"
        )


class CompilingNotice:
    """For `on_compile`: says once that `kernels` are being compiled, which takes a while."""

    def __init__(self, kernels: str) -> None:
        self._line: str | None = f"compiling {kernels}, on first use …"

    def __call__(self, kernel: str, seconds: float | None) -> None:
        if seconds is None and self._line is not None:
            say(self._line)
            self._line = None
