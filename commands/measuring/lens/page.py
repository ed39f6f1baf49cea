"""The page of `kvarn lens`: one HTML file that fetches nothing.

Its template is page.html, its style page.css, its program reading.js, drawing.js and page.js. A
policy in the page (CSP) allows these alone, by their digests, and no request. The data are JSON:

    model, method              texts, see `Source`
    n_tokens, part, parts      of the context; tokens of a part; number of parts
    n_layers, heads, layers    of the model; KV heads; the layers that chose
    steps, chose, of           positions of the tokens read; layers that chose at each; all recorded
    pieces, text               all texts of a token; for each token the number of its own (packed)
    overview                   steps × parts: tokens read over all layers and heads (packed)
    lists                      of the first steps, as many as fit: `View.numbers` (packed)

Packed numbers are written in bytes of seven bits, the lowest first, the eighth bit set where more
follow (LEB128), then compressed (zlib) and written in base64.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from ....system.errors import KvarnError
from ....system.text import escaped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ....runtime.tokenizer import Tokenizer
    from .view import View

SCRIPTS = ("reading.js", "drawing.js", "page.js")
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Page:
    """A page; detailed: how many of its steps have what each layer and head read."""

    html: bytes
    detailed: int


def pieces_of(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[str]:
    """The text of each token; "" for all but the last one of a character that takes several.

    What a terminal would act on is escaped, as are characters that reorder text.
    """
    stream = tokenizer.stream(special=True)
    pieces = [escaped(stream.push(int(token))) for token in tokens]
    if pieces:
        pieces[-1] += stream.flush()
    return pieces


def render(view: View, pieces: Sequence[str], most_bytes: int) -> Page:
    """The page of a view; pieces: see `pieces_of`.

    Steps get what each layer and head read, in order, as long as the page stays within
    `most_bytes`. Raises `KvarnError` if there is no room for one of them.
    """
    data = _data(view, pieces)
    room = most_bytes - len(_filled(data))
    lists: list[str] = data["lists"]
    for position in view.steps:
        packed = pack(view.numbers(position))
        room -= len(packed) + len('"",')
        if room < 0:
            break
        lists.append(packed)
    if not lists:
        needed = -(-(most_bytes - room) // (1 << 20))
        raise KvarnError(
            f"the text and what was read for one token take {needed} MiB: give --size {needed} or "
            "more"
        )
    return Page(_filled(data), len(lists))


def pack(numbers: NDArray[np.uint32]) -> str:
    """Numbers as the page holds them, see above."""
    wide = numbers.astype(np.uint64).ravel()
    sizes = np.ones(len(wide), np.int64)
    for i in range(1, 5):
        sizes += wide >> np.uint64(7 * i) > 0
    out = np.zeros(int(sizes.sum()), np.uint8)
    starts = np.cumsum(sizes) - sizes
    for i in range(5):
        has = sizes > i
        digit = (wide[has] >> np.uint64(7 * i)) & np.uint64(127)
        more = np.where(sizes[has] > i + 1, np.uint64(128), np.uint64(0))
        out[starts[has] + i] = digit | more
    return base64.b64encode(zlib.compress(out.tobytes(), 9)).decode()


def _data(view: View, pieces: Sequence[str]) -> dict[str, Any]:
    """All but the lists."""
    source = view.selections.source
    number: dict[str, int] = {}
    text = [number.setdefault(piece, len(number)) for piece in pieces]
    return {
        "model": escaped(source.model),
        "method": escaped(source.method),
        "n_tokens": len(view.tokens),
        "part": view.part,
        "parts": view.n_parts,
        "n_layers": source.n_layers,
        "heads": source.n_kv_heads,
        "layers": view.layers,
        "steps": view.steps,
        "chose": [len(layers) for layers in view.chosen.values()],
        "of": view.recorded,
        "pieces": list(number),
        "text": pack(np.array(text, np.uint32)),
        "overview": pack(view.overview()),
        "lists": [],
    }


def _filled(data: Mapping[str, Any]) -> bytes:
    """The template with everything in its place."""
    folder = files(__package__)
    style = (folder / "page.css").read_text("utf-8")
    script = "".join((folder / name).read_text("utf-8") for name in SCRIPTS)
    # No "<" of a text can end the element, and none is read as a comment.
    written = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    places = {
        "title": html.escape(f"What {data['model']} read"),
        "style": style,
        "style_digest": _digest(style),
        "script": script,
        "script_digest": _digest(script),
        "data": written,
    }
    template = (folder / "page.html").read_text("utf-8")
    return _PLACE.sub(lambda place: places[place[1]], template).encode()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
