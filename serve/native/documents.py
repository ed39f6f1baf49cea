"""Documents that clients send as files, turned into texts in processes of their own."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from dataclasses import dataclass

import msgspec
from starlette.requests import Request

from ...runtime.documents.kinds import HTML_NAMES
from ..answers.fields import ReadingFields
from ..service import Service
from ..wire.bodies import decode, from_texts
from ..wire.errors import ApiError
from ..wire.forms import Part, parts_of

COMMAND = (sys.executable, "-P", "-m", "kvarn.runtime.documents")
_HTML = ("text/html", "application/xhtml+xml")


class Upload(ReadingFields, kw_only=True):
    """The name of a document, and how it is read: as `ReadingFields`, but after no pack."""

    name: str
    stream: bool = True


class PackRequest(Upload, kw_only=True):
    """A document whose text is sent."""

    text: str


class ConvertedText(msgspec.Struct):
    """What the process that reads a document writes."""

    text: str = ""
    notices: list[str] = []
    refused: str = ""
    missing: bool = False


@dataclass(frozen=True)
class UploadedDocument:
    """A document that a client sent as a file. suffix: ".html", or "": other kinds are known by
    their bytes."""

    fields: Upload
    data: bytes
    suffix: str


def document_of(request: Request, body: bytes) -> PackRequest | UploadedDocument:
    """What POST /packs is sent: JSON; a form with one file; or with `?name=`, the file as it is."""
    media_type = request.headers.get("content-type", "")
    if media_type.lower().startswith("multipart/form-data"):
        return _form_document(parts_of(body, media_type))
    if "name" in request.query_params:
        fields = from_texts(dict(request.query_params), Upload)
        return UploadedDocument(fields, body, _suffix(fields.name, media_type))
    return decode(body, PackRequest)


def _form_document(parts: list[Part]) -> UploadedDocument:
    """The one file of a form, whose name the document has unless a field says another."""
    files = [part for part in parts if part.file_name is not None]
    if len(files) != 1:
        raise ApiError(400, f"the form has {len(files)} files, expected one", "file")
    [file] = files
    values = {one.name: one.data.decode("utf-8", "replace") for one in parts if one is not file}
    fields = from_texts({"name": file.file_name or "", **values}, Upload)
    return UploadedDocument(fields, file.data, _suffix(file.file_name or "", file.media_type))


def _suffix(file_name: str, media_type: str) -> str:
    is_html = media_type.partition(";")[0].strip().lower() in _HTML
    return ".html" if is_html or file_name.lower().endswith(HTML_NAMES) else ""


async def convert_document(service: Service, data: bytes, name: str, suffix: str) -> ConvertedText:
    """The text of a document; its process ends when nobody waits for it any more.

    Raises `ApiError` 400 for what cannot be read, 501 where its readers are not installed.
    """
    async with service.converting:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            name,
            suffix,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            output, _ = await process.communicate(data)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            code = await process.wait()
    try:
        answer = msgspec.json.decode(output, type=ConvertedText)
    except ValueError:
        reason = f"its reader ended with code {code}, as one that takes too much does"
        raise ApiError(400, f"{name} cannot be read: {reason}", "file") from None
    if answer.refused:
        raise ApiError(501 if answer.missing else 400, answer.refused, "file")
    return answer
