"""multipart/form-data: the fields and files of a form (RFC 7578)."""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser

from .errors import ApiError

MOST_PARTS = 64


@dataclass(frozen=True)
class Part:
    """One field. file_name: None for one that is no file."""

    name: str
    file_name: str | None
    media_type: str
    data: bytes


def parts_of(body: bytes, content_type: str) -> list[Part]:
    """The parts of a form. Raises `ApiError` 400 for a damaged one."""
    head = Message()
    head["Content-Type"] = content_type
    boundary = head.get_boundary()
    if not boundary:
        raise ApiError(400, "the form's Content-Type has no boundary")
    sections = b"\r\n".join((b"", body)).split(b"\r\n--" + boundary.encode("utf-8", "replace"))
    *sections, end = sections[1:] or [b""]
    if not end.startswith(b"--"):
        raise ApiError(400, "the form ends before its last boundary")
    if len(sections) > MOST_PARTS:
        raise ApiError(400, f"the form has {len(sections):,} parts, expected at most {MOST_PARTS}")
    return [_part(section) for section in sections]


def _part(section: bytes) -> Part:
    lines, gap, data = section.partition(b"\r\n\r\n")
    text = lines.partition(b"\r\n")[2].decode("utf-8", "replace")
    head = HeaderParser().parsestr(text)
    name = head.get_param("name", header="Content-Disposition")
    if not gap or not isinstance(name, str):
        raise ApiError(400, "a part of the form has no name")
    return Part(name, head.get_filename(), head.get_content_type(), data)
