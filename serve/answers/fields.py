"""Fields of requests that mean the same in all APIs, and their meaning for the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from ...runtime.chat.openai import fields as openai
from ...runtime.sampling.constraints.form import Form
from ...runtime.serving.prompt import Reading
from ..wire.errors import ApiError, invalid

_READING = ("method", "budget", "keep", "prefill")
MOST_STOPS = 64
MOST_STOP_CHARACTERS = 1_000
"""Of all stop texts together: each character that is generated is compared with them."""
MOST_CONSTRAINT_BYTES = 64 << 10
"""Of a schema, grammar or regular expression. Checking one costs more than its size: 0.5 s
for a schema of 57 KB, over 25 s for one of 259 KB, and holds up all others meanwhile."""
_CONSTRAINTS = ("json_schema", "grammar", "regex")


class ReadingFields(msgspec.Struct, kw_only=True):
    """How a prompt is read, in the words of `kvarn run`, and the pack that it follows."""

    method: str | None = None
    budget: str | float | None = None
    keep: str | None = None
    prefill: str | None = None
    pack: str | None = None


class SamplingFields(ReadingFields, kw_only=True):
    """How tokens are drawn, too; names of OpenAI and llama.cpp. None: as the model's file says, or
    kvarn by itself. samplers: names, or llama.cpp's letters in one text."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    top_n_sigma: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    samplers: list[str] | str | None = None
    stop: str | list[str] | None = None


_SAMPLING = [
    name
    for name in SamplingFields.__struct_fields__
    if name not in ("stop", *ReadingFields.__struct_fields__)
]


class ConstraintFields(SamplingFields, kw_only=True):
    """What an answer must match, too: one of a JSON schema, a grammar (GBNF or Lark) and a regular
    expression."""

    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    regex: str | None = None


def sampling_of(fields: SamplingFields, path: str = "") -> dict[str, Any]:
    """The options of `Sampler` that the fields name. path: where they stand in the body."""
    return openai.sampling_of({name: getattr(fields, name) for name in _SAMPLING}, path)


def stops_of(stop: str | list[str] | None, field: str = "stop") -> list[str]:
    """The texts at which an answer ends; empty ones, which some clients send, are none.

    Raises `ApiError` 400 for more than `MOST_STOPS`, or `MOST_STOP_CHARACTERS` in all.
    """
    stops = [text for text in ([stop] if isinstance(stop, str) else stop or []) if text]
    n_characters = sum(map(len, stops))
    if len(stops) > MOST_STOPS or n_characters > MOST_STOP_CHARACTERS:
        raise ApiError(
            400,
            f"{field} has {len(stops):,} texts of {n_characters:,} characters, expected at most "
            f"{MOST_STOPS} of {MOST_STOP_CHARACTERS:,}",
            field,
        )
    return stops


def reading_of(fields: ReadingFields) -> Reading:
    """How the prompt is read."""
    words = {name: getattr(fields, name) for name in _READING}
    given = {name: _word(value) for name, value in words.items() if value is not None}
    return Reading(words=given, pack=fields.pack or "")


def tokens_of(value: int | None, field: str) -> int | None:
    """The most tokens of an answer; None, and llama.cpp's -1: no limit but the context's."""
    if value is None or value == -1:
        return None
    if value < 1:
        raise invalid(field, value, "1 or more")
    return value


def constraint_of(fields: ConstraintFields) -> Form | None:
    """The constraint that the fields name. Raises `ApiError` 400 for two of them."""
    names = [name for name in _CONSTRAINTS if getattr(fields, name) is not None]
    if not names:
        return None
    if len(names) > 1:
        raise ApiError(400, f"{' and '.join(names)} exclude each other: omit one", names[1])
    if fields.json_schema is not None:
        return schema_constraint(fields.json_schema)
    if fields.regex is not None:
        return checkable(Form("regex", fields.regex))
    grammar = fields.grammar or ""
    return checkable(Form("gbnf" if "::=" in grammar else "lark", grammar), "grammar")


def schema_constraint(schema: dict[str, Any]) -> Form:
    """Answers that match a JSON schema. Raises `ApiError` 400 for one of too many bytes."""
    return checkable(openai.schema_form(schema))


def checkable(form: Form, name: str = "") -> Form:
    """A form, if it can be checked in about a second. name: of its field."""
    name = name or form.kind
    if (n_bytes := len(form.value.encode())) > MOST_CONSTRAINT_BYTES:
        most = f"{MOST_CONSTRAINT_BYTES:,}"
        raise ApiError(400, f"{name} has {n_bytes:,} bytes, expected at most {most}", name)
    return form


def _word(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
