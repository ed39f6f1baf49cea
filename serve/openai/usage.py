"""What answers cost and read, in OpenAI's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...runtime.chat import replies
from ...runtime.serving.protocol import Done
from ..answers.collecting import WholeAnswer
from ..wire.encoding import event
from ..wire.errors import ApiError, shape


def usage_of(answers: Sequence[WholeAnswer], per_prompt: int = 1) -> dict[str, Any]:
    """Tokens of all answers; a prompt that has several counts once."""
    ends = [answer.done or Done(0, "cancelled") for answer in answers]
    n_prompt = sum(done.n_prompt for done in ends[::per_prompt])
    n_generated = sum(done.n_generated for done in ends)
    n_cached = sum(one.n_cached for one in ends[::per_prompt])
    details = {"prompt_tokens_details": {"cached_tokens": n_cached}}
    return {**replies.usage_of(n_prompt, n_generated), **details}


def timings_of(answers: Sequence[WholeAnswer]) -> dict[str, Any]:
    """llama.cpp's `timings`: what was read and generated, and in how many milliseconds."""
    ends = [answer.done or Done(0, "cancelled") for answer in answers]
    return {
        "cache_n": sum(done.n_cached for done in ends),
        "prompt_n": sum(done.n_prompt - done.n_cached for done in ends),
        "prompt_ms": 1000 * sum(done.read_seconds for done in ends),
        "predicted_n": sum(done.n_generated for done in ends),
        "predicted_ms": 1000 * sum(done.generate_seconds for done in ends),
    }


def lens_of(done: Done | None) -> dict[str, Any]:
    """What an answer read, beside its other fields, if the request asked for it."""
    if done is None or done.lens is None:
        return {}
    return {"lens": msgspec.to_builtins(done.lens)}


def error_end(error: ApiError) -> bytes:
    """The end of a stream that an error ends."""
    return event(shape("", error))
