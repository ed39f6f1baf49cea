"""The sampling that the author of a GGUF file recommends: its keys `general.sampling.*`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from .errors import SamplingError
from .options import SamplingOptions

_PREFIX = "general.sampling."
_OPTIONS = {
    "sequence": "samplers",
    "penalty_last_n": "repeat_last_n",
    "penalty_repeat": "repeat_penalty",
    **{
        name: name
        for name in (
            "top_k top_p min_p xtc_probability xtc_threshold temp mirostat mirostat_tau "
            "mirostat_eta"
        ).split()
    },
}
"""Key → option of `Sampler`. Source: llama.cpp's `common_init_sampler_from_model`."""


def stored_options(metadata: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """Options of `Sampler` that a file says, without those that are `given`.

    Raises `SamplingError` for a value that is none.
    """
    options: dict[str, Any] = {}
    for key, option in _OPTIONS.items():
        value: Any = metadata.get(_PREFIX + key)
        if value is None or option in given:
            continue
        if isinstance(getattr(SamplingOptions, option), int) and value == _whole(value):
            value = _whole(value)
        try:
            SamplingOptions(**dict[str, Any]({option: value}))
        except SamplingError as error:
            reason = str(error).removeprefix("sampling: ")
            raise SamplingError(
                f"sampling: {_PREFIX}{key} of the model's file: {reason}; give {option} yourself"
            ) from None
        options[option] = value
    return options


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, float) and value.is_integer() else None


def described(options: Mapping[str, Any]) -> str:
    """Options as text: `temp 0.6, top_k 20`."""
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value!s:.100}"
        for name, value in options.items()
    )
