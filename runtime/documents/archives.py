"""Documents that are zip files: their members, up to a limit."""

from __future__ import annotations

from io import BytesIO
from zipfile import ZipFile

from .kinds import DocumentRefused
from .markup import MOST_MARKUP


class Archive:
    """A zip file whose members are read up to `MOST_MARKUP` bytes in all, whatever they claim.

    name: the document's, for messages.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._zip, self._name, self._room = ZipFile(BytesIO(data)), name, MOST_MARKUP
        self.names = frozenset(self._zip.namelist())

    def read(self, member: str) -> bytes:
        """All bytes of a member. Raises `DocumentRefused` where it, with those before, has more
        than the limit; KeyError, zipfile.BadZipFile."""
        with self._zip.open(member) as stream:
            data = stream.read(self._room + 1)
        self._room -= len(data)
        if self._room < 0:
            raise DocumentRefused(
                f"{self._name} unpacks to more than the {MOST_MARKUP:,} bytes that are read"
            )
        return data
