"""Of what text the parts of a pack are, beside the pack: while it is there, nothing else may write.

.NAME.parts/text    {"pack": its id, "digest": of the text, "n_segments": those it has}
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from .....ops.attention.layout import SEGMENT
from .. import files
from ..errors import PackDamaged, PackInParts, opening
from .manifest import NAME as MANIFEST
from .manifest import Manifest

TEXT = "text"
_MOST_BYTES = 1 << 12
_MOST_NAME = 240
"""Bytes of the name of a pack, of 255 that systems take for a name."""


@dataclass(frozen=True)
class PartsText:
    """The text that the parts of a pack are of. n_segments: those of the pack itself."""

    pack: str
    digest: str
    n_segments: int


def parts_folder(pack: Path) -> Path:
    """The folder of the parts of a pack, beside it."""
    pack = pack.resolve()  # `.` and `..` are no names, and links are others
    name = os.fsencode(pack.name)
    shown = pack.name if len(name) <= _MOST_NAME else xxhash.xxh3_128_hexdigest(name)
    return pack.parent / f".{shown}.parts"


def first_token(pack: Path) -> int:
    """The first token of its own of a part of a pack; 0 for other packs. Raises `PackError`."""
    parent = Manifest.read(pack).parent
    if parent is None or parts_folder(parent.folder(pack)) != pack.parent.resolve():
        return 0
    return parent.n_segments * SEGMENT


def parts_text(pack: Path) -> PartsText | None:
    """What the parts of a pack are of; None if it is not written in parts. Raises `PackError`."""
    with opening(pack):
        try:
            data = json.loads(files.read_file(parts_folder(pack) / TEXT, _MOST_BYTES))
            text = PartsText(str(data["pack"]), str(data["digest"]), int(data["n_segments"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise PackDamaged(pack, f"{parts_folder(pack) / TEXT} is damaged") from None
    is_of_pack = (pack / MANIFEST).exists() and Manifest.read(pack).id == text.pack
    return text if is_of_pack else None


def check_no_parts(pack: Path) -> None:
    """Raise `PackInParts` if the pack is written in parts."""
    if parts_text(pack) is not None:
        raise PackInParts(pack)
