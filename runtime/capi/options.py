"""Options of the C interface: a JSON object as text, with the names of the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from ...ops.attention.layout import KV_TYPES
from ...system.text import brief
from ..attend import ATTENDS
from ..draft import Ngram
from ..home import pack_path
from ..keep import KEEPS
from ..memory import available_bytes
from ..methods import Method, Option
from ..packs import pack_info
from ..sampling import Sampler
from ..store import Disk, Ram
from .errors import BadArgument

if TYPE_CHECKING:
    from ..context import Context
    from ..model import Model

M = TypeVar("M", bound=Method)
Kind = Callable[[Any], Any]
"""Gives a value back as it is used; `ValueError` with what was expected."""

ROOM = 4096
"""Tokens that can follow a pack which fills the model's training length."""
_LARGEST = 2**31 - 1
_MULTIPLES = {"K": 1 << 10, "M": 1 << 20}
_KEEP = "keep_"


def parsed(text: str | None, known: Mapping[str, Kind]) -> dict[str, Any]:
    """The options in a JSON object; `BadArgument` for anything else."""
    if text is None:
        return {}
    found = parsed_json(text, "the options")
    if not isinstance(found, dict):
        raise BadArgument(f"the options are {brief(found)}: expected a JSON object")
    given = {}
    for name, value in found.items():
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise BadArgument(f"unknown option {brief(name)}: the options are {names}")
        try:
            given[name] = known[name](value)
        except ValueError as error:
            raise BadArgument(f"the option {name} is {brief(value)}: expected {error}") from error
    return given


def parsed_json(text: str, what: str) -> Any:
    """The value of a JSON text; `BadArgument` for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"{what} are {brief(text)}, which is no JSON: {error}") from error


def _whole(least: int, most: int = _LARGEST) -> Kind:
    def checked(value: Any) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return value

    return checked


def _count(value: Any) -> int:
    """A number of tokens from 1 on; also "128K" and "1M"."""
    if isinstance(value, str) and value[:-1].isascii() and value[:-1].isdigit():
        value = int(value[:-1][:12]) * _MULTIPLES.get(value[-1].upper(), 0)
    if type(value) is not int or not 1 <= value <= _LARGEST:
        raise ValueError(f'a number of tokens from 1 to {_LARGEST}, or one such as "128K"')
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError("a number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("a text")
    return value


def _texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(one, str) for one in texts):
        raise ValueError("a text, or an array of texts")
    return texts


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _one_of(names: Mapping[str, Any] | tuple[str, ...]) -> Kind:
    def checked(value: Any) -> str:
        if not isinstance(value, str) or value not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return value

    return checked


def _kv_type(value: Any) -> tuple[str, str]:
    """ "q8_0" → ("q8_0", "q8_0"), "q8_0/q4_0" → ("q8_0", "q4_0")."""
    k, _, v = value.partition("/") if isinstance(value, str) else ("", "", "")
    pair = k, v or k
    if not set(pair) <= set(KV_TYPES):
        raise ValueError(f"one of {', '.join(KV_TYPES)}, or one for K and one for V: q8_0/q4_0")
    return pair


def _bias(value: Any) -> dict[int, float]:
    expected = 'an object such as {"15043": -1.5}'
    if not isinstance(value, dict) or not all(len(key) < 12 for key in value):
        raise ValueError(expected)
    try:
        return {int(token): _number(bias) for token, bias in value.items()}
    except ValueError:
        raise ValueError(expected) from None


def _or_null(kind: Kind) -> Kind:
    return lambda value: None if value is None else kind(value)


MODEL: Mapping[str, Kind] = {"threads": _whole(1)}
PACK: Mapping[str, Kind] = {"ctx": _count, "kv_type": _kv_type}

_SAMPLER: dict[str, Kind] = {
    one.name: _number if isinstance(one.default, float) else _whole(-1) for one in fields(Sampler)
} | {"logit_bias": _or_null(_bias), "seed": _or_null(_whole(0, 2**64 - 1))}
del _SAMPLER["n_probs"]  # of the Python interface: nothing here shows them
GENERATE: Mapping[str, Kind] = _SAMPLER | {
    "max_tokens": _or_null(_whole(-1)),
    "stop": _texts,
    "draft": _yes_or_no,
}
CHAT: Mapping[str, Kind] = {**GENERATE, "base": _whole(0)}


def generation_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `Context.generation`, of options of `GENERATE`."""
    most = given.get("max_tokens")
    return {
        "max_tokens": None if most == -1 else most,
        "sampler": Sampler(**{name: given[name] for name in _SAMPLER if name in given}),
        "stop": given.get("stop", []),
        "draft": Ngram() if given.get("draft") else None,
    }


def _option(declared: Option) -> Kind:
    """A method's option, which may be a number where its text is one: a budget of 512."""
    if declared.choices:
        return _one_of(declared.choices)
    if declared.kind in (int, float):
        return _whole(-_LARGEST) if declared.kind is int else _number

    def checked(value: Any) -> str:
        return str(value) if type(value) is int else _text(value)

    return checked


def _of_methods(methods: Mapping[str, type[Method]], prefix: str) -> dict[str, Kind]:
    return {
        prefix + name: _option(declared)
        for method in methods.values()
        for name, declared in method.options().items()
    }


def _context_options() -> dict[str, Kind]:
    """The options of contexts, those of all methods included."""
    return {
        **_of_methods(ATTENDS, ""),
        **_of_methods(KEEPS, _KEEP),
        "ctx": _count,
        "kv_type": _kv_type,
        "method": _one_of(ATTENDS),
        "keep": _one_of(KEEPS),
        "store": _text,
        "pack": _text,
        "io": _one_of(Disk.options()["io"].choices),
    }


def _method(
    given: Mapping[str, Any], axis: str, methods: Mapping[str, type[M]], default: str, prefix: str
) -> M:
    """The method of an axis, with its options."""
    chosen = given.get(axis, default)
    knowing = methods[chosen].options()
    own = {}
    for name in _of_methods(methods, prefix).keys() & given.keys():
        field = name.removeprefix(prefix)
        if field not in knowing:
            owners = [other for other, method in methods.items() if field in method.options()]
            raise BadArgument(
                f"the option {name} has no effect with {axis} {chosen}: it belongs to "
                f"{' or '.join(owners)}"
            )
        own[field] = given[name]
    return methods[chosen](**own)


def context_of(model: Model, text: str | None) -> Context:
    """A context as the options ask for it; without "ctx", as large as the model's training length
    and the memory allow."""
    given = parsed(text, _context_options())
    attend = _method(given, "method", ATTENDS, "full", "")
    keep = _method(given, "keep", KEEPS, "all", _KEEP)
    limit, pair, io = model.config.n_ctx_train, given.get("kv_type"), given.get("io")
    if "pack" in given and "store" in given:
        raise BadArgument("the options name a pack and a store, two places for one KV cache")
    disk_io = Disk.default("io") if io is None else io
    if io is not None and not {"pack", "store"} & given.keys():
        raise BadArgument("the option io has no effect without a store or a pack")
    n_ctx, ram = given.get("ctx"), Ram(*(pair or ()))
    k, v = pair or (None, None)
    if "pack" in given:
        info = pack_info(pack_path(given["pack"]))
        n_ctx = n_ctx or (limit if info.n_tokens < limit else info.n_tokens + ROOM)
        store = Disk(info.path, k, v, read_only=True, io=disk_io)
        return model.context(n_ctx, attend, keep, store)
    if "store" in given:
        return model.context(n_ctx, attend, keep, Disk(given["store"], k, v, io=disk_io))
    if n_ctx is None and not keep.evicts(limit):
        n_ctx = max(1, min(limit, ram.tokens_in(model.config, available_bytes())))
    return model.context(n_ctx, attend, keep, ram)
