"""Texts or ids of tokens, one or several, as OpenAI's requests have them."""

from __future__ import annotations

from typing import TypeAlias

from ..wire.errors import ApiError, invalid

Given: TypeAlias = str | list[int | str | list[int]]
"""A text, ids of tokens, or a list of either."""


def check_no_suffix(suffix: str | None) -> None:
    """Raises `ApiError` 400 for a text that is to follow the answer."""
    if suffix:
        raise ApiError(400, "suffix is given, expected none: no text is filled in", "suffix")


def inputs_of(given: Given, field: str) -> list[str | list[int]]:
    """The texts and lists of ids. Raises `RequestError` for none, and for ids below 0."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid(field, given, "a text, ids of tokens, or a list of either")
    ids = [one for one in given if isinstance(one, int)]
    if ids and len(ids) < len(given):
        raise ApiError(400, f"{field} mixes ids of tokens and texts, expected one of them", field)
    several = [one for one in given if not isinstance(one, int)]
    inputs: list[str | list[int]] = [ids] if ids else several  # type: ignore[assignment]
    for one in inputs:
        if isinstance(one, list) and any(not 0 <= id < 1 << 31 for id in one):
            raise ApiError(400, f"{field} has ids that no token has, expected some from 0", field)
    return inputs
