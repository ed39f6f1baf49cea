"""How an answer is drawn, and what it must match."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from typing import Any, Literal, Required, TypedDict

from ...sampling.constraints.form import Form
from ...sampling.errors import SamplingError
from ...sampling.options import SamplingOptions, bias_of_json
from ...sampling.order import samplers_lettered
from .errors import RequestError, invalid

_RENAMED = {"temperature": "temp", "mirostat_mode": "mirostat", "grammar": "constraint"}
_OPTIONS = {one.name for one in dataclass_fields(SamplingOptions)}
_ANY_SEED = (-1, 0xFFFFFFFF)
"""llama.cpp's words for a fresh one."""


class JsonSchema(TypedDict, total=False):
    schema: dict[str, Any] | None


class ResponseFormat(TypedDict, total=False):
    """The form of an answer. schema: where llama.cpp and /v1/responses have it."""

    type: Required[Literal["text", "json_object", "json_schema"]]
    json_schema: JsonSchema | None
    schema: dict[str, Any] | None


def form_of(wanted: ResponseFormat | None) -> Form | None:
    """What an answer must match; None: anything. Raises `RequestError`."""
    if wanted is None or (kind := wanted.get("type")) == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise invalid("response_format.type", kind, "text, json_object or json_schema")
    if (schema := (wanted.get("json_schema") or wanted).get("schema")) is not None:
        return schema_form(schema)
    if kind == "json_schema":
        path = "response_format.json_schema.schema"
        raise RequestError(f"{path} is missing, expected a JSON schema", path)
    return Form("json_object")


def schema_form(schema: Mapping[str, Any]) -> Form:
    """Answers that match a JSON schema."""
    return Form("json_schema", json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


def sampling_of(fields: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The options of `Sampler` that fields of a request name; None: what nobody said. samplers:
    names, or llama.cpp's letters in one text. path: where the fields stand in the request.

    Raises `RequestError` for a value out of its range.
    """
    options: dict[str, Any] = {}
    for name, given in fields.items():
        option, value = _RENAMED.get(name, name), given
        if value is None or (name == "seed" and value in _ANY_SEED):
            continue
        if option not in _OPTIONS or name == "constraint":
            raise RequestError(f"there is no argument {name!r:.40}", name)
        if name == "logit_bias":
            value = bias_of_json(value)
        try:
            if name == "samplers" and isinstance(value, str):
                value = list(samplers_lettered(value))
            SamplingOptions(**{option: value})
        except SamplingError as error:
            reason = str(error).removeprefix("sampling: ").replace(option, f"{path}{name}", 1)
            raise RequestError(reason, f"{path}{name}") from None
        options[option] = value
    return options
