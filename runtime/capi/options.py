"""Options of the C interface: a JSON object as text, with the names of the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from ...system.errors import WrongUsage
from ...system.text import brief
from ...system.values import WrongValue, count
from ..axes import PREFILL_AXIS
from ..context.planning.request import kv_types
from ..loading.device_names import DEVICES, KV_ON
from ..methods import Kind, Option
from ..sampling import Sampler
from ..sampling.options import bias_of_json

if TYPE_CHECKING:
    from ..model import Model


class BadArgument(WrongUsage):
    """A mistake of the program that calls."""


def parsed(text: str | None, known: Mapping[str, Kind]) -> dict[str, Any]:
    """The options in a JSON object; `BadArgument` for anything else."""
    if text is None:
        return {}
    options = parsed_json(text, "the options")
    if not isinstance(options, dict):
        raise BadArgument(f"the options are {brief(options)}: expected a JSON object")
    values = {}
    for name, value in options.items():
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise BadArgument(f"unknown option {brief(name)}: the options are {names}")
        try:
            values[name] = known[name](value)
        except WrongValue as wrong:
            raise BadArgument(
                f"the option {name} is {brief(value)}: expected {wrong.expected}"
            ) from wrong
    return values


def parsed_json(text: str, name: str) -> Any:
    """The value of a JSON text; `BadArgument` for any other text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"{name} are {brief(text)}, which is not JSON: {error}") from error


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise WrongValue("a number", value)
    return float(value)


def _texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(item, str) for item in texts):
        raise WrongValue("a text, or an array of texts", value)
    return texts


def _either(*types: type, expected: str) -> Kind:
    """Takes values of these types as they are."""

    def read(value: Any) -> Any:
        if not isinstance(value, types):
            raise WrongValue(expected, value)
        return value

    return read


def _or_null(kind: Kind) -> Kind:
    return lambda value: None if value is None else kind(value)


MODEL: Mapping[str, Kind] = {
    "threads": partial(count, least=1),
    "device": Option("", choices=DEVICES).read,
    "kv_on": Option("", choices=KV_ON).read,
    "lora": _texts,
}
PACK: Mapping[str, Kind] = {"ctx": count, "kv_type": kv_types, **PREFILL_AXIS.kinds()}


def _sampler_kind(default: Any) -> Kind:
    if isinstance(default, bool):
        return _either(bool, expected="true or false")
    if isinstance(default, tuple):
        return _texts
    return _number if isinstance(default, float) else partial(count, least=-1)


_OBJECT = _either(dict, expected='an object such as {"15043": -1.5}')
_SAMPLER: dict[str, Kind] = {
    field.name: _sampler_kind(field.default) for field in fields(Sampler)
} | {
    "logit_bias": _or_null(lambda value: bias_of_json(_OBJECT(value))),
    "samplers": lambda value: value if isinstance(value, str) else _texts(value),
    "seed": _or_null(partial(count, most=2**64 - 1, units=False)),
}
del _SAMPLER["n_probs"], _SAMPLER["constraint"]  # of the Python interface
GENERATE: Mapping[str, Kind] = _SAMPLER | {
    "max_tokens": _or_null(partial(count, least=-1)),
    "stop": _texts,
    "draft": _either(bool, str, expected='true, false, "ngram" or the file of a model'),
    "draft_max": partial(count, least=1),
    "draft_min_match": partial(count, least=1),
    "draft_p_min": _number,
}
CHAT: Mapping[str, Kind] = {**GENERATE, "base": count}


def generation_of(given: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Arguments of `Context.generation` but the draft, of options of `GENERATE`."""
    limit = given.get("max_tokens")
    return {
        "max_tokens": None if limit == -1 else limit,
        "sampler": model.sampler(**{name: given[name] for name in _SAMPLER if name in given}),
        "stop": given.get("stop", []),
    }
