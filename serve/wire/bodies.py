"""A request's body: its size, how long it may take, and what its JSON holds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from ...system.text import one_line, shown
from ..settings import Limits
from .errors import ApiError, ClientGone

T = TypeVar("T")

_DRAINED = 4
"""Times the limit of a body that is read and dropped, so that its client gets to the answer."""
_AT = re.compile(r"(?P<reason>.*?) - at (?P<key>`key` in )?`\$(?P<path>.*)`", re.DOTALL)


async def read_body(request: Request, limits: Limits) -> bytes:
    """The whole body, of whatever type it says to be: clients send JSON under many names, and
    `Guard` refuses other sites' pages by their origin. Raises `ApiError` 408, 413 or 415, and
    `ClientGone`."""
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise ApiError(415, f"Content-Encoding is {shown(coding)}, expected none")
    length = request.headers.get("content-length", "")
    try:
        async with asyncio.timeout(limits.body_seconds):
            if length.isdecimal() and int(length) > limits.body_bytes:
                await _drain(request, limits.body_bytes * _DRAINED)
                raise _too_large(f"{int(length):,} bytes", limits)
            body = bytearray()
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body_bytes:
                    await _drain(request, limits.body_bytes * _DRAINED)
                    raise _too_large(f"more than {limits.body_bytes:,} bytes", limits)
    except TimeoutError:
        seconds = f"{limits.body_seconds:g} seconds"
        raise ApiError(408, f"the body did not arrive within {seconds}: send it faster") from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


def decode(body: bytes, kind: type[T]) -> T:
    """The body as a type of `msgspec`. Raises `ApiError` 400 with the field's path."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deep, expected JSON of fewer levels") from None
    except ValueError as error:  # also text that is not UTF-8
        reason = one_line(str(error)).removeprefix("JSON is malformed: ")
        raise ApiError(400, f"the body is not JSON: {reason}") from None


def from_texts(values: Mapping[str, str], kind: type[T]) -> T:
    """The fields of a form or query as a type of `msgspec`. Raises `ApiError` 400."""
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong_field(str(error)) from None


def _too_large(size: str, limits: Limits) -> ApiError:
    return ApiError(413, f"the body has {size}, expected at most {limits.body_bytes:,}")


async def _drain(request: Request, most: int) -> None:
    """Read and drop what is left of a body. (A client that is cut off while it sends sees no
    answer.)"""
    with suppress(ClientDisconnect, RuntimeError):  # RuntimeError: the stream was read to its end
        n_bytes = 0
        async for piece in request.stream():
            n_bytes += len(piece)
            if n_bytes > most:
                return


def _wrong_field(problem: str) -> ApiError:
    """msgspec's words ("Expected `int`, got `str` - at `$.n`") as kvarn's."""
    match = _AT.fullmatch(problem)
    reason, path = (match["reason"], match["path"].lstrip(".")) if match else (problem, "")
    reason = one_line(reason.replace("`", ""), 200)
    reason = reason[:1].lower() + reason[1:]
    if match and match["key"]:
        reason = f"{reason} as a key"
    return ApiError(400, f"{path or 'the body'}: {reason}", path)
